// A range of rows of a table, on a server that holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vol/ps/shown_rows.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

// For the server's thread.
class Range {
 public:
  Range(const TableOptions& options, std::int64_t first, std::int64_t end, int clients);

  // The pushes of a client to this range have growing numbers. Returns false if this one has come
  // before (P2); else the caller applies it or keeps it.
  bool note_push(int client, std::uint64_t push);
  // `rows` are in this range. Throws what the user's function throws; nothing has changed then.
  void apply(const Rows& rows, const std::byte* gradients);
  void read(const Rows& rows, std::byte* to) const;

  // A push that is applied when all clients have ended its clock (BSP).
  struct Kept {
    std::uint64_t clock;
    int client;
    std::uint64_t push;
    std::vector<std::int64_t> keys;
    std::vector<std::byte> gradients;

    // With the room that a list has for more, and what the two blocks take beside their contents.
    std::size_t bytes() const {
      return 2 * sizeof(Kept) + 32 + keys.size() * sizeof(keys[0]) + gradients.size();
    }
  };
  void keep(Kept kept) { kept_.push_back(std::move(kept)); }
  // Takes out the kept pushes of clocks below `clock`, in the order of clocks, clients and numbers.
  std::vector<Kept> take_kept(std::uint64_t clock);
  std::span<const Kept> kept() const { return kept_; }

  // Moves the values to where clients read them from now on (P9).
  void show(const ShownRange& shown);
  bool is_shown() const { return version_ != nullptr; }
  // Moves the values back, when no client reads them any more.
  void hide();

  // The bytes of values and states, to be copied to another server's range.
  std::span<std::byte> values() { return {values_, value_bytes_}; }
  std::span<std::byte> states() { return {states_.get(), state_bytes_}; }
  std::span<const std::byte> values() const { return {values_, value_bytes_}; }
  std::span<const std::byte> states() const { return {states_.get(), state_bytes_}; }
  // Those from `offset` on, counted through the values and then the states, as far as they lie
  // together. None: the range has not so many.
  std::span<std::byte> bytes_from(std::uint64_t offset);
  std::span<const std::byte> bytes_from(std::uint64_t offset) const {
    return const_cast<Range*>(this)->bytes_from(offset);
  }
  // Puts bytes there; false if they do not lie together there.
  bool restore(std::uint64_t offset, std::span<const std::byte> bytes);
  std::span<std::uint64_t> pushes() { return pushes_; }  // by client, the last that it has
  std::span<const std::uint64_t> pushes() const { return pushes_; }

 private:
  const TableOptions& options_;
  std::int64_t first_;
  std::size_t count_;  // of values in the range
  std::size_t value_bytes_, state_bytes_;
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory zeros(std::size_t bytes);
  Memory own_values_;  // null once they are shown
  std::byte* values_;
  Version* version_ = nullptr;  // null: not shown
  Memory states_;               // null: the rule has none
  std::vector<std::uint64_t> pushes_;
  std::vector<Kept> kept_;
};

}  // namespace vol::ps
