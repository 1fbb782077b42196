// Streams: queues of operations. Each has a thread of its own, which does them in order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "functions.hpp"

namespace fake_cuda {

// A point in a stream, which is reached when all that was queued before it is done.
struct Mark {
  bool is_reached = false;
};

struct Operation {
  std::shared_ptr<Mark> after;    // it begins when this is reached; null: at once
  std::function<void()> work;     // runs without the lock; may be empty
  std::shared_ptr<Mark> reached;  // by its end; may be null
};

}  // namespace fake_cuda

namespace dstorm::device {

struct StreamTag {
  Ordinal ordinal;
  std::deque<fake_cuda::Operation> queue;
  std::uint64_t queued = 0;    // operations, since it was made
  std::uint64_t finished = 0;  // and those of them that are done or dropped
  bool is_destroyed = false;   // its thread leaves it when the queue is empty
};

struct EventTag {
  Ordinal ordinal;
  std::shared_ptr<fake_cuda::Mark> last;  // where it was last recorded; null: never
};

}  // namespace dstorm::device

namespace fake_cuda {

// All of these are called under the lock.

std::shared_ptr<StreamTag> make_stream(Ordinal ordinal);
// The stream of a handle: null and 1 are the null stream of the current context, and so is 2, the
// stream of the thread. Null if there is none.
std::shared_ptr<StreamTag> find_stream(Stream handle);
void queue(StreamTag& stream, Operation operation);
// Waits until all that is queued now is done, on one stream or, of a device or of all (-1), on all.
Result finish(std::unique_lock<std::mutex>& lock, std::shared_ptr<StreamTag> stream);
Result finish_device(std::unique_lock<std::mutex>& lock, Ordinal ordinal);
// Drops what has not begun.
void drop_all();

}  // namespace fake_cuda
