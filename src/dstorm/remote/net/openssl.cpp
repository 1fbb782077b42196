#include "dstorm/remote/net/openssl.hpp"

#include <dlfcn.h>

#include <string>

#include "dstorm/errors.hpp"

namespace dstorm::net {
namespace {

// Also the name of 3.1 and later, whose functions of 3.0 are the same. If Python has loaded its own
// copy under this name, the loader gives that one.
constexpr const char* kFile = "libssl.so.3";
constexpr const char* kNeeds = "TCP between hosts is protected by OpenSSL 3.0 or later";
constexpr const char* kWayOut =
    "apt install libssl3, or MALT_TLS=off for every rank on a network that you trust";

template <class Function>
void find(void* library, Function*& function, const char* name) {
  // Also finds those of libcrypto, which libssl needs.
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) {
    throw ConfigError(std::string(kNeeds) + ": " + kFile + " has no " + name + "; " + kWayOut);
  }
}

OpenSsl load() {
  // Never unloaded: it registers exit handlers, and others in this process may use it.
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw ConfigError(std::string(kNeeds) + ", which cannot be loaded (" + dlerror() + "); " +
                      kWayOut);
  }
  OpenSsl found{};
  find(library, found.BIO_clear_flags, "BIO_clear_flags");
  find(library, found.BIO_get_data, "BIO_get_data");
  find(library, found.BIO_get_new_index, "BIO_get_new_index");
  find(library, found.BIO_meth_free, "BIO_meth_free");
  find(library, found.BIO_meth_new, "BIO_meth_new");
  find(library, found.BIO_meth_set_ctrl, "BIO_meth_set_ctrl");
  find(library, found.BIO_meth_set_read, "BIO_meth_set_read");
  find(library, found.BIO_meth_set_write, "BIO_meth_set_write");
  find(library, found.BIO_new, "BIO_new");
  find(library, found.BIO_set_data, "BIO_set_data");
  find(library, found.BIO_set_flags, "BIO_set_flags");
  find(library, found.BIO_set_init, "BIO_set_init");
  find(library, found.ERR_clear_error, "ERR_clear_error");
  find(library, found.ERR_peek_last_error, "ERR_peek_last_error");
  find(library, found.ERR_reason_error_string, "ERR_reason_error_string");
  find(library, found.SSL_CTX_check_private_key, "SSL_CTX_check_private_key");
  find(library, found.SSL_CTX_ctrl, "SSL_CTX_ctrl");
  find(library, found.SSL_CTX_free, "SSL_CTX_free");
  find(library, found.SSL_CTX_get0_certificate, "SSL_CTX_get0_certificate");
  find(library, found.SSL_CTX_get_cert_store, "SSL_CTX_get_cert_store");
  find(library, found.SSL_CTX_get_ex_data, "SSL_CTX_get_ex_data");
  find(library, found.SSL_CTX_load_verify_locations, "SSL_CTX_load_verify_locations");
  find(library, found.SSL_CTX_new, "SSL_CTX_new");
  find(library, found.SSL_CTX_set_cipher_list, "SSL_CTX_set_cipher_list");
  find(library, found.SSL_CTX_set_ciphersuites, "SSL_CTX_set_ciphersuites");
  find(library, found.SSL_CTX_set_default_passwd_cb, "SSL_CTX_set_default_passwd_cb");
  find(library, found.SSL_CTX_set_ex_data, "SSL_CTX_set_ex_data");
  find(library, found.SSL_CTX_set_default_read_buffer_len, "SSL_CTX_set_default_read_buffer_len");
  find(library, found.SSL_CTX_set_num_tickets, "SSL_CTX_set_num_tickets");
  find(library, found.SSL_CTX_set_options, "SSL_CTX_set_options");
  find(library, found.SSL_CTX_set_psk_client_callback, "SSL_CTX_set_psk_client_callback");
  find(library, found.SSL_CTX_set_psk_server_callback, "SSL_CTX_set_psk_server_callback");
  find(library, found.SSL_CTX_set_verify, "SSL_CTX_set_verify");
  find(library, found.SSL_CTX_use_PrivateKey_file, "SSL_CTX_use_PrivateKey_file");
  find(library, found.SSL_CTX_use_certificate_chain_file, "SSL_CTX_use_certificate_chain_file");
  find(library, found.SSL_do_handshake, "SSL_do_handshake");
  find(library, found.SSL_export_keying_material, "SSL_export_keying_material");
  find(library, found.SSL_free, "SSL_free");
  find(library, found.SSL_get_error, "SSL_get_error");
  find(library, found.SSL_get_SSL_CTX, "SSL_get_SSL_CTX");
  find(library, found.SSL_get_verify_result, "SSL_get_verify_result");
  find(library, found.SSL_has_pending, "SSL_has_pending");
  find(library, found.SSL_is_init_finished, "SSL_is_init_finished");
  find(library, found.SSL_new, "SSL_new");
  find(library, found.SSL_read_ex, "SSL_read_ex");
  find(library, found.SSL_set_accept_state, "SSL_set_accept_state");
  find(library, found.SSL_set_bio, "SSL_set_bio");
  find(library, found.SSL_set_connect_state, "SSL_set_connect_state");
  find(library, found.SSL_set_session_id_context, "SSL_set_session_id_context");
  find(library, found.SSL_shutdown, "SSL_shutdown");
  find(library, found.SSL_write, "SSL_write");
  find(library, found.TLS_method, "TLS_method");
  find(library, found.X509_STORE_CTX_free, "X509_STORE_CTX_free");
  find(library, found.X509_STORE_CTX_get_error, "X509_STORE_CTX_get_error");
  find(library, found.X509_STORE_CTX_init, "X509_STORE_CTX_init");
  find(library, found.X509_STORE_CTX_new, "X509_STORE_CTX_new");
  find(library, found.X509_STORE_CTX_set_purpose, "X509_STORE_CTX_set_purpose");
  find(library, found.X509_verify_cert, "X509_verify_cert");
  find(library, found.X509_verify_cert_error_string, "X509_verify_cert_error_string");
  return found;
}

}  // namespace

const OpenSsl& openssl() {
  static const OpenSsl loaded = load();
  return loaded;
}

}  // namespace dstorm::net
