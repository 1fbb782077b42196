// Message authentication codes, by which ranks prove that they have the job's key.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "dstorm/remote/net/kept_key.hpp"

namespace dstorm::net {

using Mac = std::array<std::byte, 32>;

Mac authenticate(const Key& key, std::span<const std::byte> message);  // HMAC-SHA256

// In a time that does not depend on where they differ. False if the sizes differ.
bool is_same(std::span<const std::byte> left, std::span<const std::byte> right);

}  // namespace dstorm::net
