#include "dstorm/remote/verbs/library.hpp"

#include <dlfcn.h>

#include <string>

#include "dstorm/errors.hpp"

namespace dstorm::verbs {
namespace {

constexpr const char* kFile = "libibverbs.so.1";

// Looks the symbol up with its version: without it the loader may give the functions of the 2006
// interface (IBVERBS_1.0), whose structures differ.
template <class Function>
void find(void* library, Function*& function, const char* name, const char* version) {
  function = reinterpret_cast<Function*>(dlvsym(library, name, version));
  if (function == nullptr) {
    throw ConfigError(std::string(kFile) + " has no " + name + "@" + version +
                      "; rdma-core 32 or later is needed: apt install ibverbs-providers");
  }
}

}  // namespace

Library Library::load() {
  // Never unloaded: the providers that the library loads start threads and register exit handlers.
  void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw ConfigError(std::string("RDMA needs libibverbs, which cannot be loaded (") + dlerror() +
                      "); apt install ibverbs-providers, or use another transport");
  }
  constexpr const char* k10 = "IBVERBS_1.0";
  constexpr const char* k11 = "IBVERBS_1.1";
  Library found{};
  find(library, found.get_device_list, "ibv_get_device_list", k11);
  find(library, found.free_device_list, "ibv_free_device_list", k11);
  find(library, found.get_device_name, "ibv_get_device_name", k11);
  find(library, found.open_device, "ibv_open_device", k11);
  find(library, found.close_device, "ibv_close_device", k11);
  find(library, found.query_device, "ibv_query_device", k11);
  find(library, found.query_port, "ibv_query_port", k11);
  find(library, found.query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11");
  find(library, found.query_pkey, "ibv_query_pkey", k11);
  find(library, found.get_async_event, "ibv_get_async_event", k11);
  find(library, found.ack_async_event, "ibv_ack_async_event", k11);
  find(library, found.event_type_str, "ibv_event_type_str", k11);
  find(library, found.alloc_pd, "ibv_alloc_pd", k11);
  find(library, found.dealloc_pd, "ibv_dealloc_pd", k11);
  find(library, found.reg_mr, "ibv_reg_mr", k11);
  find(library, found.dereg_mr, "ibv_dereg_mr", k11);
  find(library, found.create_comp_channel, "ibv_create_comp_channel", k10);
  find(library, found.destroy_comp_channel, "ibv_destroy_comp_channel", k10);
  find(library, found.create_cq, "ibv_create_cq", k11);
  find(library, found.destroy_cq, "ibv_destroy_cq", k11);
  find(library, found.get_cq_event, "ibv_get_cq_event", k11);
  find(library, found.ack_cq_events, "ibv_ack_cq_events", k11);
  find(library, found.create_qp, "ibv_create_qp", k11);
  find(library, found.modify_qp, "ibv_modify_qp", k11);
  find(library, found.destroy_qp, "ibv_destroy_qp", k11);
  find(library, found.wc_status_str, "ibv_wc_status_str", k11);
  return found;
}

}  // namespace dstorm::verbs
