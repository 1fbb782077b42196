// Streams and events.
#include "streams.hpp"

#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX signal masks

#include <thread>
#include <utility>

#include "state.hpp"

namespace fake_cuda {
namespace {

bool can_begin(const StreamTag& stream) {
  const State& all = state();
  if (stream.queue.empty() || all.is_stalled || all.is_over) return false;
  const auto& after = stream.queue.front().after;
  return after == nullptr || after->is_reached;
}

// Does a stream's work until it is destroyed.
void serve(Lock& lock, StreamTag* stream) {
  State& all = state();
  while (true) {
    all.changed.wait(lock, [&] {
      return can_begin(*stream) || (stream->is_destroyed && stream->queue.empty());
    });
    if (stream->queue.empty()) return;
    {
      const Operation next = std::move(stream->queue.front());
      stream->queue.pop_front();
      lock.unlock();
      if (next.work) next.work();
      lock.lock();
      if (next.reached != nullptr && !all.is_lost) next.reached->is_reached = true;
    }
    ++stream->finished;
    all.changed.notify_all();
  }
}

// Serves one stream after the other, and never ends: see this_thread(). The host's kernels have
// thread_local variables.
void serve_streams() {
  State& all = state();
  Lock lock(all.mutex);
  while (true) {
    ++all.idle_threads;
    all.changed.wait(lock, [&] { return !all.unserved.empty(); });
    --all.idle_threads;
    const std::shared_ptr<StreamTag> stream = std::move(all.unserved.front());
    all.unserved.pop_front();
    serve(lock, stream.get());
    std::erase(all.all_streams, stream);
  }
}

void start_thread() {
  // Signals are for the program's threads.
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  std::thread(serve_streams).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Result finish_all(Lock& lock, const std::vector<std::shared_ptr<StreamTag>>& streams) {
  State& all = state();
  for (const auto& stream : streams) {
    const std::uint64_t last = stream->queued;
    all.changed.wait(lock, [&] { return stream->finished >= last || all.is_lost || all.is_over; });
  }
  return all.is_over ? kDeinitialised : all.is_lost ? kIllegalAddress : kSuccess;
}

}  // namespace

std::shared_ptr<StreamTag> make_stream(Ordinal ordinal) {
  auto made = std::make_shared<StreamTag>();
  made->ordinal = ordinal;
  State& all = state();
  all.all_streams.push_back(made);
  all.unserved.push_back(made);
  if (all.unserved.size() > all.idle_threads) start_thread();
  all.changed.notify_all();
  return made;
}

std::shared_ptr<StreamTag> find_stream(Stream handle) {
  State& all = state();
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    ContextTag& context = *current_context();
    if (context.null_stream == nullptr) context.null_stream = make_stream(context.ordinal);
    return context.null_stream;
  }
  const auto found = all.streams.find(handle);
  return found == all.streams.end() ? nullptr : found->second;
}

void queue(StreamTag& stream, Operation operation) {
  stream.queue.push_back(std::move(operation));
  ++stream.queued;
  state().changed.notify_all();
}

Result finish(Lock& lock, std::shared_ptr<StreamTag> stream) {
  return finish_all(lock, {std::move(stream)});
}

Result finish_device(Lock& lock, Ordinal ordinal) {
  std::vector<std::shared_ptr<StreamTag>> those;
  for (const auto& stream : state().all_streams) {
    if (ordinal < 0 || stream->ordinal == ordinal) those.push_back(stream);
  }
  return finish_all(lock, those);
}

void drop_all() {
  State& all = state();
  for (const auto& stream : all.all_streams) {
    stream->finished += stream->queue.size();
    stream->queue.clear();
  }
  all.changed.notify_all();
}

Result stream_create(Stream* stream, unsigned flags) {
  const Call call(symbol::stream_create, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (stream == nullptr || (flags & ~kStreamNonBlocking) != 0) return kInvalidValue;
  const auto made = make_stream(current_context()->ordinal);
  state().streams[made.get()] = made;
  *stream = made.get();
  return kSuccess;
}

// Returns at once; what is queued is still done.
Result stream_destroy(Stream stream) {
  const Call call(symbol::stream_destroy, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  const auto found = all.streams.find(stream);
  if (found == all.streams.end()) return kInvalidHandle;
  found->second->is_destroyed = true;
  all.streams.erase(found);
  all.changed.notify_all();
  return kSuccess;
}

Result stream_synchronize(Stream stream) {
  Call call(symbol::stream_synchronize, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  return found == nullptr ? kInvalidHandle : finish(call.lock, found);
}

Result stream_query(Stream stream) {
  const Call call(symbol::stream_query, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  if (found == nullptr) return kInvalidHandle;
  return found->finished == found->queued ? kSuccess : kNotReady;
}

Result stream_wait(Stream stream, Event event, unsigned flags) {
  const Call call(symbol::stream_wait, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto found = find_stream(stream);
  const auto awaited = state().events.find(event);
  if (found == nullptr || awaited == state().events.end()) return kInvalidHandle;
  if (flags != 0) return kInvalidValue;
  queue(*found, {awaited->second->last, nullptr, nullptr});
  return kSuccess;
}

Result stream_capture(Stream stream, int* status) {
  const Call call(symbol::stream_capture, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (find_stream(stream) == nullptr) return kInvalidHandle;
  *status = state().settings.is_capturing ? 1 : kCaptureNone;
  return kSuccess;
}

Result event_create(Event* event, unsigned flags) {
  const Call call(symbol::event_create, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  if (event == nullptr || flags > 7) return kInvalidValue;
  auto made = std::make_unique<EventTag>(EventTag{current_context()->ordinal, nullptr});
  *event = made.get();
  state().events[made.get()] = std::move(made);
  return kSuccess;
}

Result event_destroy(Event event) {
  const Call call(symbol::event_destroy, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  return state().events.erase(event) == 0 ? kInvalidHandle : kSuccess;
}

Result event_record(Event event, Stream stream) {
  const Call call(symbol::event_record, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  const auto on = find_stream(stream);
  const auto found = state().events.find(event);
  if (on == nullptr || found == state().events.end()) return kInvalidHandle;
  if (on->ordinal != found->second->ordinal) return kInvalidHandle;
  found->second->last = std::make_shared<Mark>();
  queue(*on, {nullptr, nullptr, found->second->last});
  return kSuccess;
}

}  // namespace fake_cuda
