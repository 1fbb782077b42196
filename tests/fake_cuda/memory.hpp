// How device memory is mapped, for that of this process and that of others.
#pragma once

#include "state.hpp"

namespace fake_cuda {

inline constexpr std::size_t kPageBytes = 4096;

std::size_t whole_pages(std::size_t bytes);
// These two are called under the lock. Maps the memory and enters the allocation into the state.
// Zero if there is no room.
Address map_memory(int fd, const Allocation& allocation);
// Undoes that, and closes the memory if this process allocated it.
void unmap(std::map<Address, Allocation>::iterator at);

}  // namespace fake_cuda
