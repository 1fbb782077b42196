// Each device's primary context, and each thread's stack of contexts.
#include "memory.hpp"
#include "state.hpp"

namespace fake_cuda {
namespace {

std::vector<Context>& stack() { return this_thread().contexts; }

// What belongs to a context ends with it.
void destroy(Lock& lock, ContextTag& context) {
  State& all = state();
  const Ordinal ordinal = context.ordinal;
  finish_device(lock, ordinal);
  const auto is_its = [&](const auto& entry) { return entry.second->ordinal == ordinal; };
  for (const auto& stream : all.all_streams) {
    if (stream->ordinal == ordinal) stream->is_destroyed = true;
  }
  context.null_stream = nullptr;
  std::erase_if(all.streams, is_its);
  std::erase_if(all.events, is_its);
  std::erase_if(all.modules, is_its);
  for (auto it = all.memory.begin(); it != all.memory.end();) {
    const auto at = it++;
    if (at->second.ordinal == ordinal) unmap(at);
  }
  all.changed.notify_all();
}

}  // namespace

Context current_context() { return stack().empty() ? nullptr : stack().back(); }

Result context_retain(Context* context, Ordinal device) {
  const Call call(symbol::context_retain, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  if (device < 0 || device >= all.settings.devices) return kInvalidDevice;
  *context = all.contexts[static_cast<std::size_t>(device)].get();
  ++(*context)->retained;
  return kSuccess;
}

Result context_release(Ordinal device) {
  Call call(symbol::context_release, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  State& all = state();
  if (device < 0 || device >= all.settings.devices) return kInvalidDevice;
  ContextTag& context = *all.contexts[static_cast<std::size_t>(device)];
  if (context.retained == 0) return kInvalidContext;
  if (--context.retained == 0) destroy(call.lock, context);
  return kSuccess;
}

Result context_push(Context context) {
  const Call call(symbol::context_push, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  for (const auto& one : state().contexts) {
    if (one.get() != context) continue;
    if (context->retained == 0) return kContextIsDestroyed;
    stack().push_back(context);
    return kSuccess;
  }
  return kInvalidContext;
}

Result context_pop(Context* context) {
  const Call call(symbol::context_pop, Needs::kInit);
  if (call.refusal != kSuccess) return call.refusal;
  if (stack().empty()) return kInvalidContext;
  if (context != nullptr) *context = stack().back();
  stack().pop_back();
  return kSuccess;
}

Result context_synchronize() {
  Call call(symbol::context_synchronize, Needs::kContext);
  if (call.refusal != kSuccess) return call.refusal;
  return finish_device(call.lock, current_context()->ordinal);
}

}  // namespace fake_cuda
