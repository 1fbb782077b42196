// Which updates a device vector folds, and where its fold finds them: as they are, decoded or
// clipped. As vol::Admission, on the GPU.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "vol/device/coder.hpp"
#include "vol/screen.hpp"

namespace vol::device {

// For the one thread that uses the vector. The GPU is in use in every call.
class Admission {
 public:
  // Throws ConfigError for options that do not fit the elements.
  Admission(const VectorOptions& options, DType dtype, std::size_t count, std::shared_ptr<Gpu> gpu,
            std::shared_ptr<Program> program);
  // How it waits for a stream; may throw. To be called before admit().
  void await_by(std::function<void(Stream)> await) { await_ = std::move(await); }

  Coder& coder() noexcept { return coder_; }
  std::uint32_t format() const noexcept;  // the only Update::format that is accepted

  // The updates to fold, and the address and format of their elements. Valid until the next call.
  struct Admitted {
    std::span<const dstorm::Update> updates;
    std::span<const Address> at;
    Wire wire;
  };
  // To be called in a gather. Tells `segment` which updates are rejected, and notes in `gathered`
  // the senders of rejected and clipped ones. Waits for the GPU if updates are screened, and under
  // top-k, since what is rejected has to be known before the fold.
  Admitted admit(std::span<const dstorm::Update> updates, std::span<const Address> at,
                 dstorm::Segment& segment, Gathered& gathered, Stream stream);
  // Decodes an admitted update to memory that is valid until the next call.
  Address decode(Address at, Wire wire, Stream stream);
  void count(const Gathered& gathered) { screen_.count(gathered.rejected, gathered.clipped); }
  const Screened& counts() const noexcept { return screen_.counts(); }

 private:
  void check(const dstorm::Update& update) const;
  Address scratch(std::size_t index);
  std::optional<double> factor(Address at, Wire wire, Stream stream);
  void place(std::span<const dstorm::Update> updates, std::span<const Address> at, Stream stream);
  Address decode(std::size_t index, Address at, Wire wire, double factor, Stream stream);

  DType dtype_;
  std::size_t count_;
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<Program> program_;
  std::string what_;
  std::function<void(Stream)> await_;
  Screen screen_;
  Coder coder_;
  std::unique_ptr<dstorm::device::PinnedMemory> found_;  // the GPU's report to the processor
  std::vector<dstorm::Update> admitted_;
  std::vector<Address> at_;
  std::vector<dstorm::device::Memory> scratch_;  // of decoded and clipped updates
};

}  // namespace vol::device
