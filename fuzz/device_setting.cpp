// MALT_RDMA_DEVICE. On a machine without adapters no setting names one, but each is read.
#include <string>

#include "dstorm/verbs/device.hpp"
#include "target.hpp"

namespace fuzz {

void run(Input input) {
  static const dstorm::verbs::Library library = dstorm::verbs::Library::load();
  const std::span<const std::byte> text = input.rest();
  is_refused([&] {
    dstorm::verbs::Device::open(library, {reinterpret_cast<const char*>(text.data()), text.size()});
  });
}

}  // namespace fuzz
