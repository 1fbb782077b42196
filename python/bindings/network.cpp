#include "bindings.hpp"
#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/tls.hpp"
#include "dstorm/remote/verbs/device.hpp"

namespace malt_bindings {

void bind_network(py::module_& module) {
  namespace net = dstorm::net;
  namespace verbs = dstorm::verbs;
  py::class_<net::Interface>(module, "Interface", "One address of a network interface.")
      .def_readonly("name", &net::Interface::name)
      .def_property_readonly("address",
                             [](const net::Interface& one) { return one.address.host(); })
      .def_readonly("prefix_bits", &net::Interface::prefix_bits)
      .def_readonly("is_loopback", &net::Interface::is_loopback);
  module.def("interfaces", &net::interfaces,
             "The addresses of this host's interfaces that are up and have a carrier.");
  module.def(
      "address_of", [](const std::string& wanted) { return net::address_of(wanted).host(); },
      py::arg("wanted"),
      "The address that a value of MALT_INTERFACE stands for.\n\n"
      "Raises:\n    ConfigError: this host has no such interface or network.");
  module.def(
      "check_tls",
      [](const std::string& folder) {
        if (folder.empty()) return net::check_tls();
        net::TlsContext{folder};
      },
      py::arg("folder"),
      "Load OpenSSL, and the certificates in the folder that MALT_TLS names; empty: none.\n\n"
      "Raises:\n    ConfigError: the file, and what is wrong with it; or what to install.");
  py::class_<verbs::DeviceReport>(module, "RdmaPort", "One port of an RDMA network adapter.")
      .def("__str__", [](const verbs::DeviceReport& one) { return describe(one.choice); })
      .def_readonly("trouble", &verbs::DeviceReport::trouble,
                    "Why it cannot be used; empty if it can.");
  module.def(
      "rdma_ports", [] { return verbs::survey(verbs::Library::load()); },
      "Every port of every RDMA network adapter.\n\n"
      "Raises:\n    ConfigError: libibverbs is missing, or cannot list them.");
  module.def(
      "rdma_port_of",
      [](const std::string& device, const std::string& partition, const std::string& service_level,
         const std::string& traffic_class) {
        const dstorm::RdmaOptions options{device, partition, service_level, traffic_class};
        return describe(verbs::Device::open(verbs::Library::load(), options).choice());
      },
      py::arg("device"), py::arg("partition"), py::arg("service_level"), py::arg("traffic_class"),
      "The port that the values of MALT_RDMA_DEVICE, MALT_RDMA_PKEY, MALT_RDMA_SL and\n"
      "MALT_RDMA_TRAFFIC_CLASS stand for; of empty ones, the first that is active.\n\n"
      "Raises:\n    ConfigError: the ports that there are, and why none can be used.");
}

}  // namespace malt_bindings
