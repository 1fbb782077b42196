// OpenSSL, opened at run time by the first use of TLS. So a wheel does not carry a copy of it but
// uses the system's, with the system's security updates. A job on one host needs no OpenSSL.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace dstorm::net {

static_assert(OPENSSL_VERSION_NUMBER >> 28 == 3, "the headers of OpenSSL 3 are needed: libssl-dev");

// The functions of libssl and libcrypto that MALT calls, under their own names.
struct OpenSsl {
  decltype(&::BIO_clear_flags) BIO_clear_flags;
  decltype(&::BIO_get_data) BIO_get_data;
  decltype(&::BIO_get_new_index) BIO_get_new_index;
  decltype(&::BIO_meth_free) BIO_meth_free;
  decltype(&::BIO_meth_new) BIO_meth_new;
  decltype(&::BIO_meth_set_ctrl) BIO_meth_set_ctrl;
  decltype(&::BIO_meth_set_read) BIO_meth_set_read;
  decltype(&::BIO_meth_set_write) BIO_meth_set_write;
  decltype(&::BIO_new) BIO_new;
  decltype(&::BIO_set_data) BIO_set_data;
  decltype(&::BIO_set_flags) BIO_set_flags;
  decltype(&::BIO_set_init) BIO_set_init;
  decltype(&::ERR_clear_error) ERR_clear_error;
  decltype(&::ERR_peek_last_error) ERR_peek_last_error;
  decltype(&::ERR_reason_error_string) ERR_reason_error_string;
  decltype(&::SSL_CTX_check_private_key) SSL_CTX_check_private_key;
  decltype(&::SSL_CTX_ctrl) SSL_CTX_ctrl;
  decltype(&::SSL_CTX_free) SSL_CTX_free;
  decltype(&::SSL_CTX_get0_certificate) SSL_CTX_get0_certificate;
  decltype(&::SSL_CTX_get_cert_store) SSL_CTX_get_cert_store;
  decltype(&::SSL_CTX_get_ex_data) SSL_CTX_get_ex_data;
  decltype(&::SSL_CTX_load_verify_locations) SSL_CTX_load_verify_locations;
  decltype(&::SSL_CTX_new) SSL_CTX_new;
  decltype(&::SSL_CTX_set_cipher_list) SSL_CTX_set_cipher_list;
  decltype(&::SSL_CTX_set_ciphersuites) SSL_CTX_set_ciphersuites;
  decltype(&::SSL_CTX_set_default_passwd_cb) SSL_CTX_set_default_passwd_cb;
  decltype(&::SSL_CTX_set_default_read_buffer_len) SSL_CTX_set_default_read_buffer_len;
  decltype(&::SSL_CTX_set_ex_data) SSL_CTX_set_ex_data;
  decltype(&::SSL_CTX_set_num_tickets) SSL_CTX_set_num_tickets;
  decltype(&::SSL_CTX_set_options) SSL_CTX_set_options;
  decltype(&::SSL_CTX_set_psk_client_callback) SSL_CTX_set_psk_client_callback;
  decltype(&::SSL_CTX_set_psk_server_callback) SSL_CTX_set_psk_server_callback;
  decltype(&::SSL_CTX_set_verify) SSL_CTX_set_verify;
  decltype(&::SSL_CTX_use_PrivateKey_file) SSL_CTX_use_PrivateKey_file;
  decltype(&::SSL_CTX_use_certificate_chain_file) SSL_CTX_use_certificate_chain_file;
  decltype(&::SSL_do_handshake) SSL_do_handshake;
  decltype(&::SSL_export_keying_material) SSL_export_keying_material;
  decltype(&::SSL_free) SSL_free;
  decltype(&::SSL_get_error) SSL_get_error;
  decltype(&::SSL_get_SSL_CTX) SSL_get_SSL_CTX;
  decltype(&::SSL_get_verify_result) SSL_get_verify_result;
  decltype(&::SSL_has_pending) SSL_has_pending;
  decltype(&::SSL_is_init_finished) SSL_is_init_finished;
  decltype(&::SSL_new) SSL_new;
  decltype(&::SSL_read_ex) SSL_read_ex;
  decltype(&::SSL_set_accept_state) SSL_set_accept_state;
  decltype(&::SSL_set_bio) SSL_set_bio;
  decltype(&::SSL_set_connect_state) SSL_set_connect_state;
  decltype(&::SSL_set_session_id_context) SSL_set_session_id_context;
  decltype(&::SSL_shutdown) SSL_shutdown;
  decltype(&::SSL_write) SSL_write;
  decltype(&::TLS_method) TLS_method;
  decltype(&::X509_STORE_CTX_free) X509_STORE_CTX_free;
  decltype(&::X509_STORE_CTX_get_error) X509_STORE_CTX_get_error;
  decltype(&::X509_STORE_CTX_init) X509_STORE_CTX_init;
  decltype(&::X509_STORE_CTX_new) X509_STORE_CTX_new;
  decltype(&::X509_STORE_CTX_set_purpose) X509_STORE_CTX_set_purpose;
  decltype(&::X509_verify_cert) X509_verify_cert;
  decltype(&::X509_verify_cert_error_string) X509_verify_cert_error_string;
};

// Opens the library at the first call; it stays loaded until the process ends. Any thread may call.
// Throws ConfigError that says what to install.
const OpenSsl& openssl();

}  // namespace dstorm::net
