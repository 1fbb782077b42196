// Rounds of bytes: each rank gives bytes, and copies what it needs of the bytes of the others. The
// collectives of a process group that exchange whole buffers are made of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dstorm/errors.hpp"
#include "dstorm/segment.hpp"
#include "vol/dtype.hpp"
#include "vol/fold.hpp"
#include "vol/folding.hpp"

namespace vol {

// Another rank made another call of an Exchange at the same time. All ranks have this error.
class OtherCall : public dstorm::ConfigError {
 public:
  using dstorm::ConfigError::ConfigError;
};

// Every rank makes the same calls in the same order. Threads: as for a Segment. After any other
// exception than ConfigError and PeerError the ranks may be in different rounds. This rank has then
// left: its later calls throw PeerError, and so do the others'.
class Exchange {
 public:
  struct Give {  // a stretch of this rank's bytes
    const void* data;
    std::size_t bytes;
  };
  struct Take {  // bytes [offset, offset + bytes) of what `rank` gives
    int rank;
    std::size_t offset;
    std::size_t bytes;
    void* to;
    std::size_t of = 0;  // the number of bytes that `rank` must give in all; 0: any
  };

  // Collective, blocking. `slot_bytes` is the part of a buffer that is sent at a time, a multiple
  // of 64. Throws what the constructor of dstorm::Segment throws.
  Exchange(std::shared_ptr<dstorm::Group> group, std::string name, std::size_t slot_bytes);

  // Collective, blocking: gives the stretches `gives`, one after the other, and copies `takes`.
  // Ranks may give different numbers of bytes. Nothing is taken from memory that is given until all
  // of it has been sent, if all that is given fits one slot. `kind` says which call this is. Throws
  // OtherCall if a rank came with another kind, PeerError naming the ranks that are dead,
  // ConfigError if one gave another number of bytes, and TimeoutError naming the ranks that did not
  // come. `may_miss`: ranks that are dead are returned instead, and what was taken from them is not
  // whole. `call` is a number that is the same on all ranks: so a call of several rounds that has
  // failed on one rank is not paired with that rank's next one.
  std::vector<int> run(std::span<const Give> gives, std::span<const Take> takes, std::uint32_t kind,
                       std::chrono::nanoseconds limit, bool may_miss = false,
                       std::uint32_t call = 0);

  // Collective, blocking: replaces the `count` elements at `data` by the fold of those of all
  // ranks, the same bits on every rank. Each rank folds all of it, a slot at a time, so that what
  // the ranks read of one another is still in the caches: the soonest way for few ranks of one
  // host. Throws as run(); some of the elements may then have been replaced.
  void fold(DType dtype, void* data, std::size_t count, const Fold& fold,
            std::chrono::nanoseconds limit, std::uint32_t call = 0);

  std::size_t slot_bytes() const noexcept { return segment_.options().slot_bytes; }
  void shut() noexcept { segment_.shut(); }

 private:
  template <class Function>
  void in_step(Function&& function);
  template <class Function>
  void gather(std::chrono::nanoseconds limit, Function&& function);
  bool is_missing(int rank) const;
  bool is_wrong() const { return elsewhere_ >= 0 || !wrong_.empty(); }
  void throw_if_wrong() const;
  void scatter(std::span<const Give> gives, std::size_t begin, std::size_t total,
               std::uint32_t kind);
  void copy(const dstorm::Update& update, std::size_t begin, std::span<const Take> takes) const;
  void note_if_wrong(const dstorm::Update& update, std::uint32_t kind, std::span<const Take> takes);

  dstorm::Segment segment_;
  // Of the call in progress: a rank that made another one, or -1; what is wrong with a length, or
  // empty; the ranks that some round lacked.
  int elsewhere_ = -1;
  std::string wrong_;
  std::vector<int> missing_;
};

}  // namespace vol
