// A CUDA driver for tests on machines without a GPU: a libcuda.so.1 whose devices are in memory. It
// has the functions of src/dstorm/device/driver.hpp and two more, which device_array.py uses.
//
// What it does as the real driver does:
// - Device memory lies in a region of its own and can be mapped by other processes (cuIpc*). Such a
//   mapping outlives the process that allocated the memory. A page without access follows each
//   allocation, so that a read or write past the end ends the process.
// - Memory that its process frees while another has it mapped is no longer that memory: the real
//   driver leaves open what it then has, and here it has the byte 0xAB.
// - Each stream does its work in order, in a thread of its own. Host functions run in that thread.
// - A copy from or to host memory that is neither registered nor allocated by the driver has ended
//   when cuMemcpyAsync returns.
// - cuMemFree and whatever else unmaps memory first wait for all work of the process.
// - After a fork the child's calls fail with 3 (not initialized), if the parent has called cuInit.
// - When the process exits, work that has not begun is dropped, and calls fail with 4.
//
// What differs: the null stream does not synchronise with the others, and is also the per-thread
// one. There is no graph capture. An allocation takes a file descriptor.
//
// cuInit reads these environment variables:
//   FAKE_CUDA_DEVICES        how many devices there are (1)
//   FAKE_CUDA_MEMORY         bytes of each device, for each process (8 GiB)
//   FAKE_CUDA_NO_PEER        1: no device can access another
//   FAKE_CUDA_NO_IPC         1: cuIpcGetMemHandle fails with 801 (not supported)
//   FAKE_CUDA_CAPTURING      1: all streams say that they are capturing
//   FAKE_CUDA_COPY_DELAY_US  how long a stream sleeps after each 64 KB of a copy (0)
//   FAKE_CUDA_FAIL           "symbol:nth:result,...": calls of fake_cuda_fail(), for children
#pragma once

#include <cstdint>

extern "C" {

// The `nth` call from now on (1: the next) of `symbol` does nothing but return `result`.
void fake_cuda_fail(const char* symbol, int nth, int result);
// How often `symbol` has been called.
std::uint64_t fake_cuda_calls(const char* symbol);
// Bytes of host memory that are registered. Memory that was unmapped before it was unregistered
// stays registered.
std::uint64_t fake_cuda_registered();
// From now on calls that need a context fail with 700 (illegal address), and so does all work that
// has been queued: host functions among it never run.
void fake_cuda_lose_context();
// While `on`, streams begin no work. What they are in the middle of goes on.
void fake_cuda_stall(int on);
}
