// MALT_RDMA_DEVICE, and the others that begin so. On a machine without adapters no setting names
// one, but each is read.
#include <string>

#include "dstorm/remote/verbs/device.hpp"
#include "target.hpp"

namespace fuzz {

void run(Input input) {
  static const dstorm::verbs::Library library = dstorm::verbs::Library::load();
  const std::span<const std::byte> bytes = input.rest();
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  using dstorm::RdmaOptions;
  for (const RdmaOptions& settings :
       {RdmaOptions{.device = text}, RdmaOptions{.partition = text},
        RdmaOptions{.service_level = text}, RdmaOptions{.traffic_class = text}}) {
    is_refused([&] { dstorm::verbs::Device::open(library, settings); });
  }
}

}  // namespace fuzz
