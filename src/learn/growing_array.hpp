// An array that grows without being copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace learn {

// malloc maps each large array on its own: realloc moves its pages, not its bytes, and pages that
// have not been written take no memory. So growing needs no second copy, and spare room costs
// nothing.
template <class T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  GrowingArray() = default;
  GrowingArray(GrowingArray&& other) noexcept
      : memory_(std::move(other.memory_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  GrowingArray& operator=(GrowingArray&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  std::size_t size() const { return size_; }
  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }
  T* end() { return memory_.get() + size_; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }

  // Makes room for `count` more elements, of no value yet, at the end. Throws std::bad_alloc.
  void reserve_more(std::size_t count) {
    const std::size_t needed = size_ + count;
    if (needed > capacity_) set_capacity(std::max(needed, capacity_ + capacity_ / 2));
  }
  // Adds the first `count` elements of that room to the array.
  void extend(std::size_t count) { size_ += count; }
  void push_back(T value) {
    reserve_more(1);
    memory_.get()[size_++] = value;
  }
  void clear() { size_ = 0; }
  void shrink_to_fit() {
    if (size_ != 0 && size_ != capacity_) set_capacity(size_);
  }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };

  void set_capacity(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
    auto* grown = static_cast<T*>(std::realloc(memory_.get(), count * sizeof(T)));
    if (grown == nullptr) throw std::bad_alloc();
    static_cast<void>(memory_.release());  // realloc has freed it
    memory_.reset(grown);
    capacity_ = count;
  }

  std::unique_ptr<T, Free> memory_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace learn
