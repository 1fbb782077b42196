#include "vol/device/admission.hpp"

#include <algorithm>
#include <cmath>

#include "dstorm/errors.hpp"

namespace vol::device {

using dstorm::Update;
using dstorm::device::PinnedMemory;

namespace {

constexpr unsigned kScreenBlocks = 256;
constexpr std::size_t kFoundBytes = kScreenBlocks * sizeof(Found);

}  // namespace

Admission::Admission(const VectorOptions& options, DType dtype, std::size_t count,
                     std::shared_ptr<Gpu> gpu, std::shared_ptr<Program> program)
    : dtype_(dtype),
      count_(count),
      gpu_(gpu),
      program_(program),
      what_("vector '" + options.name + "'"),
      screen_(options.reject_nonfinite, options.max_norm, dtype, what_),
      coder_(options.codec, dtype, count, std::move(gpu), std::move(program), what_) {
  if (screen_.is_on() || coder_.wire() == Wire::kLargest) {
    found_ = std::make_unique<PinnedMemory>(gpu_, kFoundBytes);
  }
}

std::uint32_t Admission::format() const noexcept {
  return static_cast<std::uint32_t>(dtype_) | static_cast<std::uint32_t>(coder_.kind()) << 8;
}

void Admission::check(const Update& update) const {
  if (update.count == count_ && update.format == format()) return;
  throw dstorm::Error(
      "rank " + std::to_string(update.rank) + " sent " + std::to_string(update.count) +
      " elements of format " + std::to_string(update.format) + " where " + std::to_string(count_) +
      " of format " + std::to_string(format()) + " were due; its memory is damaged");
}

Admission::Admitted Admission::admit(std::span<const Update> updates, std::span<const Address> at,
                                     dstorm::Segment& segment, Gathered& gathered, Stream stream) {
  for (const Update& update : updates) check(update);
  Wire wire = coder_.wire();
  admitted_.assign(updates.begin(), updates.end());
  at_.assign(at.begin(), at.end());
  if (wire == Wire::kLargest) {
    place(updates, at, stream);
    wire = Wire::kPlain;
  }
  if (!screen_.is_on() || !(dtype_ == DType::kFloat32 || dtype_ == DType::kFloat64)) {
    return {admitted_, at_, wire};
  }
  std::vector<double> factors;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const std::optional<double> by = factor(at_[i], wire, stream);
    if (!by) {
      segment.reject(i);
      gathered.rejected.push_back(updates[i].rank);
      continue;
    }
    if (*by < 1) gathered.clipped.push_back(updates[i].rank);
    factors.push_back(*by);
    admitted_[kept] = updates[i];
    at_[kept++] = at_[i];
  }
  admitted_.resize(kept);
  at_.resize(kept);
  if (std::ranges::any_of(factors, [](double by) { return by < 1; })) {
    // A fold takes its inputs in one format, so all are decoded.
    for (std::size_t i = 0; i < kept; ++i) at_[i] = decode(i, at_[i], wire, factors[i], stream);
    wire = Wire::kPlain;
  }
  return {admitted_, at_, wire};
}

void Admission::place(std::span<const Update> updates, std::span<const Address> at, Stream stream) {
  int* const wrong = reinterpret_cast<int*>(found_->data());
  for (std::size_t i = 0; i < updates.size(); ++i) {
    *wrong = 0;
    at_[i] = scratch(i);
    coder_.place(at_[i], at[i], wrong, stream);
    await_(stream);
    if (*wrong == 0) continue;
    throw dstorm::Error("rank " + std::to_string(updates[i].rank) +
                        " sent an update with indices out of order; its memory is damaged");
  }
}

Address Admission::decode(Address at, Wire wire, Stream stream) {
  return decode(0, at, wire, 1.0, stream);
}

// The update may lie in the scratch memory of this or of a later index (under top-k).
Address Admission::decode(std::size_t index, Address at, Wire wire, double factor, Stream stream) {
  const Address to = scratch(index);
  program_->launch("decode", program_->blocks_for(count_),
                   DecodeArgs{reinterpret_cast<void*>(to), reinterpret_cast<const void*>(at),
                              count_, wire, factor},
                   stream);
  return to;
}

Address Admission::scratch(std::size_t index) {
  while (scratch_.size() <= index) {
    scratch_.emplace_back(gpu_, count_ * dtype_size(dtype_), what_);
  }
  return scratch_[index].at();
}

std::optional<double> Admission::factor(Address at, Wire wire, Stream stream) {
  Found* const found = reinterpret_cast<Found*>(found_->data());
  program_->launch("screen", kScreenBlocks,
                   ScreenArgs{reinterpret_cast<const void*>(at), count_, wire, found}, stream);
  await_(stream);
  double sum = 0;
  Count nonfinite = 0;
  for (unsigned block = 0; block < kScreenBlocks; ++block) {
    sum += found[block].sum_of_squares;
    nonfinite += found[block].nonfinite;
  }
  return screen_.factor(sum, nonfinite != 0);
}

}  // namespace vol::device
