// libibverbs, opened at run time. So one build runs with and without RDMA on the machine, and a
// wheel does not carry a copy that would look for its providers in the wrong place.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace dstorm::verbs {

// The functions that MALT calls. Those that verbs.h defines inline (ibv_post_send, ibv_poll_cq,
// ibv_req_notify_cq) go through the device's own table and are called directly. A plain value, to
// be copied; the library it points into stays loaded until the process ends.
struct Library {
  // Throws ConfigError that says what to install.
  static Library load();

  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::_ibv_query_gid_table) query_gid_table;
  decltype(&::ibv_query_pkey) query_pkey;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_event_type_str) event_type_str;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_wc_status_str) wc_status_str;
};

// An object that libibverbs made, with the function of Library that destroys it.
template <class T>
using Handle = std::unique_ptr<T, int (*)(T*)>;

}  // namespace dstorm::verbs
