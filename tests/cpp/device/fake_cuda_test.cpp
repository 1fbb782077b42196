// The fake driver of tests/fake_cuda does what MALT relies on in a real one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "fake.hpp"
#include "processes.hpp"
#include "vol/device/kernel_args.hpp"

using namespace dstorm::device;  // NOLINT(google-build-using-namespace): its driver is tested
using testing_fake::driver;
using testing_processes::Shared;

namespace {

constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialised = 3;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kIllegalAddress = 700;
constexpr Result kHostMemoryAlreadyRegistered = 712;
constexpr Result kNotPermitted = 800;

constexpr std::size_t kBytes = 1 << 20;

std::byte* host(Address address) { return reinterpret_cast<std::byte*>(address); }
Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

// Device 0's context, which the thread uses.
void use_device() {
  Context context = nullptr;
  ASSERT_EQ(driver().init(0), kSuccess);
  ASSERT_EQ(driver().context_retain(&context, 0), kSuccess);
  ASSERT_EQ(driver().context_push(context), kSuccess);
}

// Runs `body` in a process that has not yet called cuInit, and whose environment it may set. Fails
// if an expectation in it does.
void in_process(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << "the child's failures are above";
}

Address allocated(std::size_t bytes) {
  Address address = 0;
  EXPECT_EQ(driver().allocate(&address, bytes), kSuccess);
  return address;
}
Stream new_stream() {
  Stream stream = nullptr;
  EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
  return stream;
}
Event new_event() {
  Event event = nullptr;
  EXPECT_EQ(driver().event_create(&event, kEventDisableTiming), kSuccess);
  return event;
}

// A host function that waits until it is told to go on.
struct Gate {
  std::atomic<bool> is_open{false};
  static void pass(void* gate) {
    while (!static_cast<Gate*>(gate)->is_open) std::this_thread::yield();
  }
};

template <class T>
void wait_until(const std::atomic<T>& value, T wanted) {
  while (value != wanted) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace

TEST(FakeCuda, HasEveryFunctionOfTheDriver) {
  driver();  // ends the process if one is missing
}

TEST(FakeCuda, CallsWithoutContextAreRefused) {
  in_process([] {
    Address address = 0;
    EXPECT_EQ(driver().allocate(&address, 1), kNotInitialised);
    EXPECT_EQ(driver().init(0), kSuccess);
    EXPECT_EQ(driver().allocate(&address, 1), kInvalidContext);
    use_device();
    EXPECT_EQ(driver().allocate(&address, 1), kSuccess);
    EXPECT_EQ(driver().stream_query(reinterpret_cast<Stream>(0x1230)), kInvalidHandle);
  });
}

TEST(FakeCuda, AllocationsEndWithTheMemory) {
  in_process([] {
    setenv("FAKE_CUDA_MEMORY", "1000000", 1);
    use_device();
    Address more = 0;
    const Address most = allocated(900000);
    EXPECT_EQ(driver().allocate(&more, 100001), kOutOfMemory);
    std::size_t left = 0;
    std::size_t total = 0;
    EXPECT_EQ(driver().memory_info(&left, &total), kSuccess);
    EXPECT_EQ(left, 100000u);
    EXPECT_EQ(total, 1000000u);
    EXPECT_EQ(driver().free(most), kSuccess);
    EXPECT_EQ(driver().free(most), kInvalidValue);
    EXPECT_EQ(driver().allocate(&more, 100001), kSuccess);
  });
}

TEST(FakeCuda, PointersTellWhatTheyPointTo) {
  in_process([] {
    use_device();
    const Address address = allocated(kBytes);
    std::vector<std::byte> memory(kBytes);
    unsigned type = 0;
    EXPECT_EQ(driver().pointer_attribute(&type, kPointerMemoryType, address + 5), kSuccess);
    EXPECT_EQ(type, kMemoryTypeDevice);
    Address base = 0;
    std::size_t bytes = 0;
    EXPECT_EQ(driver().address_range(&base, &bytes, address + kBytes - 1), kSuccess);
    EXPECT_EQ(base, address);
    EXPECT_EQ(bytes, kBytes);
    EXPECT_EQ(driver().address_range(&base, &bytes, address + kBytes), kInvalidValue);

    const Address host_address = address_of(memory.data());
    EXPECT_EQ(driver().pointer_attribute(&type, kPointerMemoryType, host_address), kInvalidValue);
    EXPECT_EQ(driver().host_register(memory.data(), kBytes, 0), kSuccess);
    EXPECT_EQ(driver().host_register(memory.data() + 100, kBytes - 100, 0),
              kHostMemoryAlreadyRegistered);
    EXPECT_EQ(driver().pointer_attribute(&type, kPointerMemoryType, host_address), kSuccess);
    EXPECT_EQ(type, 1u);
    EXPECT_EQ(FAKE(fake_cuda_registered)(), kBytes);
    EXPECT_EQ(driver().host_unregister(memory.data()), kSuccess);
    EXPECT_EQ(FAKE(fake_cuda_registered)(), 0u);
    EXPECT_EQ(driver().host_unregister(memory.data()), 713);
  });
}

TEST(FakeCuda, StreamWaitsForAnEventOfAnother) {
  in_process([] {
    use_device();
    const Stream first = new_stream();
    const Stream second = new_stream();
    const Event event = new_event();
    const Address address = allocated(kBytes);
    Gate gate;
    driver().launch_host(first, Gate::pass, &gate);
    driver().set_async(address, 7, kBytes, first);
    EXPECT_EQ(driver().event_record(event, first), kSuccess);
    EXPECT_EQ(driver().stream_wait(second, event, 0), kSuccess);
    void* copied = nullptr;
    EXPECT_EQ(driver().host_allocate(&copied, kBytes, 0), kSuccess);
    driver().copy_async(address_of(copied), address, kBytes, second);
    EXPECT_EQ(driver().stream_query(second), kNotReady);
    gate.is_open = true;
    EXPECT_EQ(driver().stream_synchronize(second), kSuccess);
    EXPECT_EQ(std::memcmp(copied, host(address), kBytes), 0);
    EXPECT_EQ(*static_cast<std::byte*>(copied), std::byte{7});

    gate.is_open = false;
    driver().launch_host(first, Gate::pass, &gate);
    EXPECT_EQ(driver().event_record(event, first), kSuccess);
    EXPECT_EQ(driver().stream_wait(second, event, 0), kSuccess);
    EXPECT_EQ(driver().stream_query(second), kNotReady) << "it has been recorded again";
    gate.is_open = true;
    EXPECT_EQ(driver().stream_synchronize(second), kSuccess);
  });
}

TEST(FakeCuda, WaitIsForTheRecordingBeforeIt) {
  in_process([] {
    use_device();
    const Stream first = new_stream();
    const Stream second = new_stream();
    const Event event = new_event();
    Gate gate;
    driver().event_record(event, first);
    driver().stream_wait(second, event, 0);
    driver().launch_host(first, Gate::pass, &gate);
    driver().event_record(event, first);
    driver().event_destroy(event);
    EXPECT_EQ(driver().stream_synchronize(second), kSuccess);
    gate.is_open = true;
    EXPECT_EQ(driver().stream_destroy(first), kSuccess);
    EXPECT_EQ(driver().stream_query(first), kInvalidHandle);
  });
}

TEST(FakeCuda, HostFunctionsRunInOrderAndMayNotCallTheDriver) {
  in_process([] {
    use_device();
    const Stream stream = new_stream();
    struct Step {
      std::vector<int>* order;
      int number;
      Result called;
    };
    std::vector<int> order;
    std::vector<Step> steps;
    for (int i = 0; i < 100; ++i) steps.push_back({&order, i, kSuccess});
    for (Step& step : steps) {
      driver().launch_host(
          stream,
          [](void* given) {
            auto& own = *static_cast<Step*>(given);
            own.order->push_back(own.number);
            std::size_t left = 0;
            std::size_t total = 0;
            own.called = driver().memory_info(&left, &total);
          },
          &step);
    }
    EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(order.size(), steps.size());
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    for (const Step& step : steps) EXPECT_EQ(step.called, kNotPermitted);
  });
}

TEST(FakeCuda, CopyOfPageableMemoryHasEndedWhenTheCallReturns) {
  in_process([] {
    setenv("FAKE_CUDA_COPY_DELAY_US", "2000", 1);
    use_device();
    const Stream stream = new_stream();
    const Address address = allocated(kBytes);
    std::vector<std::byte> memory(kBytes, std::byte{3});
    EXPECT_EQ(driver().copy_async(address, address_of(memory.data()), kBytes, stream), kSuccess);
    EXPECT_EQ(driver().stream_query(stream), kSuccess);
    EXPECT_EQ(host(address)[kBytes - 1], std::byte{3});

    driver().host_register(memory.data(), kBytes, 0);
    EXPECT_EQ(driver().copy_async(address_of(memory.data()), address, kBytes, stream), kSuccess);
    EXPECT_EQ(driver().stream_query(stream), kNotReady);
    EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(driver().copy_async(address, address_of(memory.data()), kBytes + 1, stream),
              kInvalidValue);
  });
}

TEST(FakeCuda, MemoryBelongsToTheDeviceOfTheContext) {
  in_process([] {
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    use_device();
    Context other = nullptr;
    EXPECT_EQ(driver().context_retain(&other, 1), kSuccess);
    EXPECT_EQ(driver().context_push(other), kSuccess);
    const Address address = allocated(kBytes);
    Ordinal ordinal = 0;
    EXPECT_EQ(driver().pointer_attribute(&ordinal, kPointerOrdinal, address), kSuccess);
    EXPECT_EQ(ordinal, 1);
    const Stream stream = new_stream();
    EXPECT_EQ(driver().context_pop(&other), kSuccess);
    EXPECT_EQ(driver().event_record(new_event(), stream), kInvalidHandle) << "another device's";
    EXPECT_EQ(driver().context_release(1), kSuccess);
    EXPECT_EQ(driver().context_release(1), kInvalidContext);
    EXPECT_EQ(driver().free(address), kInvalidValue) << "it ended with its context";
    EXPECT_EQ(driver().stream_query(stream), kInvalidHandle);
  });
}

TEST(FakeCuda, ThreadsMayUseItAtTheSameTime) {
  in_process([] {
    use_device();
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([] {
        use_device();
        for (int round = 0; round < 20; ++round) {
          const Stream stream = new_stream();
          const Address from = allocated(kBytes);
          const Address to = allocated(kBytes);
          driver().set_async(from, static_cast<unsigned char>(round), kBytes, stream);
          driver().copy_async(to, from, kBytes, stream);
          EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
          EXPECT_EQ(host(to)[kBytes - 1], static_cast<std::byte>(round));
          EXPECT_EQ(driver().free(from), kSuccess);
          EXPECT_EQ(driver().free(to), kSuccess);
          EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(FakeCuda, StalledStreamsBeginNoWork) {
  in_process([] {
    use_device();
    const Stream stream = new_stream();
    const Address address = allocated(1);
    FAKE(fake_cuda_stall)(1);
    driver().set_async(address, 1, 1, stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(driver().stream_query(stream), kNotReady);
    FAKE(fake_cuda_stall)(0);
    EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
  });
}

TEST(FakeCuda, FreeWaitsForWorkOfAllStreams) {
  in_process([] {
    setenv("FAKE_CUDA_COPY_DELAY_US", "2000", 1);
    use_device();
    const Stream stream = new_stream();
    const Address from = allocated(kBytes);
    const Address to = allocated(kBytes);
    driver().copy_async(to, from, kBytes, stream);
    EXPECT_EQ(driver().stream_query(stream), kNotReady);
    EXPECT_EQ(driver().free(from), kSuccess);
    EXPECT_EQ(driver().stream_query(stream), kSuccess);
  });
}

TEST(FakeCuda, NothingWorksAfterTheContextIsLost) {
  in_process([] {
    use_device();
    const Stream stream = new_stream();
    const Event event = new_event();
    Gate gate;
    std::atomic<bool> has_run{false};
    driver().launch_host(stream, Gate::pass, &gate);
    driver().launch_host(
        stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &has_run);
    driver().event_record(event, stream);
    std::thread waiting([stream] {
      use_device();
      EXPECT_EQ(driver().stream_synchronize(stream), kIllegalAddress);
    });
    FAKE(fake_cuda_lose_context)();
    waiting.join();
    gate.is_open = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(has_run);
    Address address = 0;
    EXPECT_EQ(driver().allocate(&address, 1), kIllegalAddress);
    EXPECT_EQ(driver().stream_synchronize(stream), kIllegalAddress);
  });
}

TEST(FakeCuda, CallsFailWhenToldTo) {
  in_process([] {
    setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:3:2,cuStreamCreate:1:999", 1);
    use_device();
    Address address = 0;
    EXPECT_EQ(driver().allocate(&address, 1), kSuccess);
    EXPECT_EQ(driver().allocate(&address, 1), kSuccess);
    EXPECT_EQ(driver().allocate(&address, 1), kOutOfMemory);
    EXPECT_EQ(driver().allocate(&address, 1), kSuccess);
    Stream stream = nullptr;
    EXPECT_EQ(driver().stream_create(&stream, 0), 999);
    FAKE(fake_cuda_fail)("cuMemAlloc_v2", 1, 719);
    EXPECT_EQ(driver().allocate(&address, 1), 719);
    EXPECT_EQ(driver().allocate(&address, 1), kSuccess);
    EXPECT_EQ(FAKE(fake_cuda_calls)("cuMemAlloc_v2"), 6u);
  });
}

TEST(FakeCuda, ForkedChildCannotUseTheDriver) {
  in_process([] {
    use_device();
    const Address address = allocated(1);
    in_process([address] {
      EXPECT_EQ(driver().init(0), kNotInitialised);
      EXPECT_EQ(driver().free(address), kNotInitialised);
      const char* name = nullptr;
      EXPECT_EQ(driver().error_name(kNotInitialised, &name), kSuccess);
      EXPECT_STREQ(name, "CUDA_ERROR_NOT_INITIALIZED");
    });
    EXPECT_EQ(driver().free(address), kSuccess);
  });
}

TEST(FakeCuda, ProcessExitsWhileStreamsWork) {
  in_process([] {
    const pid_t pid = fork();
    if (pid == 0) {
      use_device();
      static Gate never;
      driver().launch_host(new_stream(), Gate::pass, &never);
      FAKE(fake_cuda_stall)(1);
      driver().set_async(allocated(1), 1, 1, nullptr);
      std::exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  });
}

TEST(FakeCuda, KernelsHaveTheirArgumentsCopied) {
  in_process([] {
    use_device();
    Module module = nullptr;
    EXPECT_EQ(driver().module_load(&module, "int f();"), 200);
    EXPECT_EQ(driver().module_load(&module, "FAKE CUBIN"), kSuccess);
    Kernel kernel = nullptr;
    EXPECT_EQ(driver().module_kernel(&kernel, module, "no_such_kernel"), 500);
    EXPECT_EQ(driver().module_kernel(&kernel, module, "decode_float32"), kSuccess);
    const Address in = allocated(4 * sizeof(float));
    const Address out = allocated(4 * sizeof(float));
    const float values[] = {1, 2, 3, 4};
    std::memcpy(host(in), values, sizeof(values));
    Gate gate;
    driver().launch_host(nullptr, Gate::pass, &gate);
    {
      vol::device::DecodeArgs args{host(out), host(in), 4, vol::device::Wire::kPlain, 2.0};
      void* arguments[] = {&args};
      EXPECT_EQ(driver().launch(kernel, 2, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr),
                kSuccess);
      std::memset(&args, 0, sizeof(args));
    }
    gate.is_open = true;
    EXPECT_EQ(driver().stream_synchronize(nullptr), kSuccess);
    float found[4];
    std::memcpy(found, host(out), sizeof(found));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(found[i], 2 * values[i]);
  });
}

// ---- Two processes ------------------------------------------------------------------------------
namespace {

struct Exchange {
  std::atomic<int> step{0};
  IpcHandle handle;
};

// A process that allocates `kBytes`, fills them with 5, hands them out and stays until step 2; then
// it frees them, which is step 3.
pid_t start_exporter(Exchange& exchange) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  use_device();
  const Address address = allocated(kBytes);
  std::memset(host(address), 5, kBytes);
  EXPECT_EQ(driver().ipc_get(&exchange.handle, address), kSuccess);
  Address opened = 0;
  EXPECT_EQ(driver().ipc_open(&opened, exchange.handle, kIpcLazyPeerAccess), kInvalidContext)
      << "it is this process's own";
  exchange.step = 1;
  wait_until(exchange.step, 2);
  EXPECT_EQ(driver().free(address), kSuccess);
  exchange.step = 3;
  wait_until(exchange.step, 4);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

TEST(FakeCudaIpc, OpenedMemoryOutlivesItsProcess) {
  const Shared<Exchange> exchange;
  in_process([&] {
    const pid_t exporter = start_exporter(*exchange);
    wait_until(exchange->step, 1);
    use_device();
    Address opened = 0;
    EXPECT_EQ(driver().ipc_open(&opened, exchange->handle, kIpcLazyPeerAccess), kSuccess);
    Address again = 0;
    EXPECT_EQ(driver().ipc_open(&again, exchange->handle, kIpcLazyPeerAccess), kSuccess);
    EXPECT_EQ(again, opened);
    Address base = 0;
    std::size_t bytes = 0;
    EXPECT_EQ(driver().address_range(&base, &bytes, opened + 9), kSuccess);
    EXPECT_EQ(base, opened);
    EXPECT_EQ(bytes, kBytes);
    EXPECT_EQ(driver().free(opened), kInvalidValue) << "it is closed, not freed";
    kill(exporter, SIGKILL);
    waitpid(exporter, nullptr, 0);
    const Address own = allocated(kBytes);
    EXPECT_EQ(driver().copy_async(own, opened, kBytes, nullptr), kSuccess);
    EXPECT_EQ(driver().stream_synchronize(nullptr), kSuccess);
    EXPECT_EQ(host(own)[kBytes - 1], std::byte{5});
    EXPECT_EQ(driver().ipc_close(opened), kSuccess);
    EXPECT_EQ(driver().ipc_close(opened), kSuccess);
    EXPECT_EQ(driver().ipc_close(opened), kInvalidValue);
    EXPECT_EQ(driver().ipc_open(&again, exchange->handle, kIpcLazyPeerAccess), kInvalidValue)
        << "its process has ended";
  });
}

TEST(FakeCudaIpc, FreedMemoryHasNoValuesForThoseWhoStillMapIt) {
  const Shared<Exchange> exchange;
  const pid_t exporter = start_exporter(*exchange);
  wait_until(exchange->step, 1);
  in_process([&] {
    use_device();
    Address opened = 0;
    EXPECT_EQ(driver().ipc_open(&opened, exchange->handle, kIpcLazyPeerAccess), kSuccess);
    EXPECT_EQ(host(opened)[kBytes - 1], std::byte{5});
    exchange->step = 2;
    wait_until(exchange->step, 3);
    EXPECT_EQ(host(opened)[0], std::byte{0xAB});
    EXPECT_EQ(host(opened)[kBytes - 1], std::byte{0xAB});
    exchange->step = 4;
  });
  int status = 0;
  EXPECT_EQ(waitpid(exporter, &status, 0), exporter);
  EXPECT_EQ(status, 0);
}

TEST(FakeCudaIpc, FreedMemoryCannotBeOpened) {
  const Shared<Exchange> exchange;
  const pid_t exporter = start_exporter(*exchange);
  wait_until(exchange->step, 1);
  in_process([&] {
    use_device();
    Address opened = 0;
    EXPECT_EQ(driver().ipc_open(&opened, exchange->handle, kIpcLazyPeerAccess), kSuccess);
    EXPECT_EQ(driver().ipc_close(opened), kSuccess);
    exchange->step = 2;
    wait_until(exchange->step, 3);
    EXPECT_EQ(driver().ipc_open(&opened, exchange->handle, kIpcLazyPeerAccess), kInvalidValue)
        << "it has been freed";
    exchange->step = 4;
  });
  int status = 0;
  EXPECT_EQ(waitpid(exporter, &status, 0), exporter);
  EXPECT_EQ(status, 0);
}

TEST(FakeCudaIpc, KilledProcessLeavesAPartOfACopy) {
  const Shared<Exchange> exchange;
  const pid_t exporter = start_exporter(*exchange);
  wait_until(exchange->step, 1);
  const pid_t writer = fork();
  if (writer == 0) {
    setenv("FAKE_CUDA_COPY_DELAY_US", "20000", 1);
    use_device();
    Address opened = 0;
    EXPECT_EQ(driver().ipc_open(&opened, exchange->handle, kIpcLazyPeerAccess), kSuccess);
    const Address own = allocated(kBytes);
    std::memset(host(own), 6, kBytes);
    driver().copy_async(opened, own, kBytes, nullptr);
    driver().stream_synchronize(nullptr);
    _exit(0);
  }
  in_process([&] {
    use_device();
    Address opened = 0;
    EXPECT_EQ(driver().ipc_open(&opened, exchange->handle, kIpcLazyPeerAccess), kSuccess);
    const std::atomic_ref first(*host(opened));
    while (first != std::byte{6}) std::this_thread::yield();
    kill(writer, SIGKILL);
    EXPECT_EQ(host(opened)[kBytes - 1], std::byte{5});
    exchange->step = 2;
    wait_until(exchange->step, 3);
    exchange->step = 4;
  });
  waitpid(writer, nullptr, 0);
  waitpid(exporter, nullptr, 0);
}
