// What the process's driver knows, and how each of its functions begins.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "functions.hpp"
#include "streams.hpp"

namespace dstorm::device {

// A device's primary context. Never freed; it is destroyed while nobody retains it.
struct ContextTag {
  Ordinal ordinal;
  int retained = 0;
  std::shared_ptr<StreamTag> null_stream;  // made when it is first used
};

struct KernelTag {
  Ordinal ordinal;
  void (*run)(const void* args, unsigned blocks);
  std::size_t args_bytes;
};
struct ModuleTag {
  Ordinal ordinal;
  std::map<std::string, KernelTag> kernels;  // those that have been asked for
};

}  // namespace dstorm::device

namespace fake_cuda {

struct Settings {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{8} << 30;
  bool has_peers = true;
  bool has_ipc = true;
  bool is_capturing = false;
  std::chrono::microseconds copy_delay{0};
};

struct Allocation {
  std::size_t bytes;
  std::size_t mapped_bytes;
  Ordinal ordinal;
  std::uint64_t token;  // names it among all allocations of all processes
  int fd;               // of its memory; -1: another process allocated it
  int openings;         // of another process's memory
  bool is_exported = false;
};

struct HostRange {
  std::size_t bytes;
  bool is_allocated;  // by cuMemHostAlloc
  Context context;
};

struct Faults {
  std::uint64_t calls = 0;
  std::map<std::uint64_t, Result> results;  // by the number of the call
};

// Guarded by `mutex`, but for the settings, which do not change after cuInit.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  Settings settings;
  std::map<std::string, Faults> faults;
  bool is_lost = false;
  bool is_stalled = false;
  bool is_over = false;                               // the process exits
  std::vector<std::unique_ptr<ContextTag>> contexts;  // by ordinal
  std::map<Address, Allocation> memory;
  std::map<Address, HostRange> host_memory;
  std::map<Stream, std::shared_ptr<StreamTag>> streams;  // those that have a handle
  std::vector<std::shared_ptr<StreamTag>> all_streams;   // and those that still have work
  std::deque<std::shared_ptr<StreamTag>> unserved;       // those that wait for a thread
  std::size_t idle_threads = 0;
  std::map<Event, std::unique_ptr<EventTag>> events;
  std::map<Module, std::unique_ptr<ModuleTag>> modules;
};
// Never freed: the streams' threads use it until the process has ended.
State& state();

using Lock = std::unique_lock<std::mutex>;

enum class Needs { kNothing, kInit, kContext };

// A call of the driver: holds the lock. It has to return `refusal` unless that is a success.
struct Call {
  Call(const char* symbol, Needs needs);
  Lock lock;
  Result refusal = kSuccess;
};

// Lets this process use the driver, and no child that it forks.
void begin_process();
// Whether this process is a child of the one that has called cuInit.
bool is_forked();
// What the driver keeps for each thread.
struct Thread {
  std::vector<Context> contexts;  // the last is the current one
  bool is_in_host_function = false;
};
Thread& this_thread();
// The calling thread's context, or null.
Context current_context();

// The range of `ranges` (by its first address) in which `address` lies, or the end.
template <class Ranges>
auto find_range(Ranges& ranges, Address address) {
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return ranges.end();
  --it;
  return address - it->first < it->second.bytes ? it : ranges.end();
}

}  // namespace fake_cuda
