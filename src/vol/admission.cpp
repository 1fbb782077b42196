#include "vol/admission.hpp"

#include "dstorm/errors.hpp"

namespace vol {

using dstorm::Update;

Admission::Admission(const VectorOptions& options, DType dtype, std::size_t count)
    : dtype_(dtype),
      count_(count),
      screen_(options.reject_nonfinite, options.max_norm, dtype, "vector '" + options.name + "'"),
      coder_(options.codec, dtype, count, "vector '" + options.name + "'") {}

std::uint32_t Admission::format() const noexcept {
  return static_cast<std::uint32_t>(dtype_) | static_cast<std::uint32_t>(coder_.kind()) << 8;
}

void Admission::check(const Update& update) const {
  if (update.payload.size() != coder_.bytes() || update.count != count_ ||
      update.format != format()) {
    throw dstorm::Error("rank " + std::to_string(update.rank) + " sent " +
                        std::to_string(update.payload.size()) + " bytes where " +
                        std::to_string(coder_.bytes()) + " were due; its memory is damaged");
  }
}

std::span<const Update> Admission::admit(std::span<const Update> updates, dstorm::Segment& segment,
                                         Gathered& gathered) {
  admitted_.clear();
  std::size_t copied = 0;
  const auto next_copy = [&]() -> std::span<std::byte> {
    if (copied == copies_.size()) copies_.emplace_back(count_ * dtype_size(dtype_));
    return copies_[copied++];
  };
  for (std::size_t i = 0; i < updates.size(); ++i) {
    Update update = updates[i];
    check(update);
    if (coder_.is_on()) {
      const std::span<std::byte> decoded = next_copy();
      if (!coder_.decode(decoded.data(), update.payload.data())) {
        throw dstorm::Error("rank " + std::to_string(update.rank) +
                            " sent an update with indices out of order; its memory is damaged");
      }
      update.payload = decoded;
    }
    const std::optional<double> factor = screen_.factor(update.payload.data(), count_);
    if (!factor) {
      segment.reject(i);
      gathered.rejected.push_back(update.rank);
      continue;
    }
    if (*factor < 1) {
      const std::span<std::byte> scaled = next_copy();
      screen_.scale(scaled.data(), update.payload.data(), *factor, count_);
      update.payload = scaled;
      gathered.clipped.push_back(update.rank);
    }
    admitted_.push_back(update);
  }
  return admitted_;
}

}  // namespace vol
