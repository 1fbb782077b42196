#include "vol/ps/range.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <tuple>

#include "dstorm/errors.hpp"

namespace vol::ps {
namespace {

template <class T>
void fill(std::byte* values, std::size_t count, double value) {
  std::fill_n(reinterpret_cast<T*>(values), count, static_cast<T>(value));
}

}  // namespace

void Range::Free::operator()(std::byte* memory) const { std::free(memory); }

Range::Range(const TableOptions& options, std::int64_t first, std::int64_t end, int clients)
    : options_(options),
      first_(first),
      count_(static_cast<std::size_t>(end - first) * options.width),
      value_bytes_(count_ * dtype_size(options.dtype)),
      state_bytes_(value_bytes_ * options.rule.states()),
      own_values_(zeros(value_bytes_)),
      values_(own_values_.get()),
      states_(zeros(state_bytes_)),
      pushes_(static_cast<std::size_t>(clients)) {
  if (options.dtype != DType::kFloat32 && options.dtype != DType::kFloat64) {
    throw dstorm::ConfigError("table '" + options.name + "' has dtype " +
                              std::string(dtype_name(options.dtype)) +
                              "; a table has float32 or float64");
  }
  if (options.initial == 0) return;
  if (options.dtype == DType::kFloat32) {
    fill<float>(values_, count_, options.initial);
  } else {
    fill<double>(values_, count_, options.initial);
  }
}

// The system gives pages of zeros, and only when they are used.
Range::Memory Range::zeros(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  Memory memory(static_cast<std::byte*>(std::calloc(bytes, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Range::show(const ShownRange& shown) {
  const Change change(shown.version);
  std::memcpy(shown.values, values_, value_bytes_);
  values_ = shown.values;
  version_ = shown.version;
  own_values_.reset();
}

void Range::hide() {
  if (version_ == nullptr) return;
  own_values_ = zeros(value_bytes_);
  std::memcpy(own_values_.get(), values_, value_bytes_);
  values_ = own_values_.get();
  version_ = nullptr;
}

std::span<std::byte> Range::bytes_from(std::uint64_t offset) {
  if (offset < value_bytes_) return values().subspan(offset);
  offset -= value_bytes_;
  return offset < state_bytes_ ? states().subspan(offset) : std::span<std::byte>();
}

bool Range::restore(std::uint64_t offset, std::span<const std::byte> bytes) {
  const std::span<std::byte> to = bytes_from(offset);
  if (bytes.size() > to.size()) return false;
  const Change change(version_);
  std::memcpy(to.data(), bytes.data(), bytes.size());
  return true;
}

bool Range::note_push(int client, std::uint64_t push) {
  std::uint64_t& last = pushes_[static_cast<std::size_t>(client)];
  if (push <= last) return false;
  last = push;
  return true;
}

void Range::apply(const Rows& rows, const std::byte* gradients) {
  if (options_.rule.kind != Rule::Kind::kFunction) {
    const Change change(version_);
    ps::apply(options_.rule, options_.dtype, values_, states_.get(), count_, rows, first_,
              options_.width, gradients);
    return;
  }
  const std::size_t row_bytes = options_.row_bytes();
  std::vector<std::byte> changed(rows.count * row_bytes);
  read(rows, changed.data());
  options_.rule.function(changed.data(), gradients, rows.count);
  const Change change(version_);  // not before: the function may take long
  for (std::size_t i = 0; i < rows.count; ++i) {
    std::memcpy(values_ + static_cast<std::size_t>(rows.at(i) - first_) * row_bytes,
                changed.data() + i * row_bytes, row_bytes);
  }
}

void Range::read(const Rows& rows, std::byte* to) const {
  const std::size_t row_bytes = options_.row_bytes();
  const auto place = [&](std::int64_t row) {
    return values_ + static_cast<std::size_t>(row - first_) * row_bytes;
  };
  if (rows.keys == nullptr) {
    std::memcpy(to, place(rows.first), rows.count * row_bytes);
  } else if (row_bytes == sizeof(float)) {  // the length is known, so no call is made
    for (std::size_t i = 0; i < rows.count; ++i) {
      std::memcpy(to + i * sizeof(float), place(rows.keys[i]), sizeof(float));
    }
  } else {
    for (std::size_t i = 0; i < rows.count; ++i) {
      std::memcpy(to + i * row_bytes, place(rows.keys[i]), row_bytes);
    }
  }
}

std::vector<Range::Kept> Range::take_kept(std::uint64_t clock) {
  const auto due = std::partition(kept_.begin(), kept_.end(),
                                  [clock](const Kept& kept) { return kept.clock >= clock; });
  std::vector<Kept> taken(std::make_move_iterator(due), std::make_move_iterator(kept_.end()));
  kept_.erase(due, kept_.end());
  std::ranges::sort(
      taken, {}, [](const Kept& kept) { return std::tuple(kept.clock, kept.client, kept.push); });
  return taken;
}

}  // namespace vol::ps
