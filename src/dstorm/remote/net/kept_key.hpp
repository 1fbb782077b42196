// The job's key for as long as a rank has it. It lies in a page of its own, which core dumps leave
// out and which is wiped when the last copy is destroyed. Copies share the page. The key never
// changes, so any thread may read it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace dstorm::net {

using Key = std::array<std::byte, 32>;

class KeptKey {
 public:
  KeptKey() : KeptKey(Key{}) {}
  // Both throw ConfigError if there is no memory. The second wipes its argument.
  KeptKey(const Key& key);  // NOLINT(google-explicit-constructor)
  KeptKey(Key&& key);       // NOLINT(google-explicit-constructor)

  operator const Key&() const noexcept { return *page_; }  // NOLINT(google-explicit-constructor)

 private:
  std::shared_ptr<const Key> page_;
};

}  // namespace dstorm::net
