// Which updates a dense vector folds, and in which form: decoded, screened, and clipped.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dstorm/segment.hpp"
#include "vol/codec.hpp"
#include "vol/dense.hpp"
#include "vol/screen.hpp"

namespace vol {

// For the one thread that uses the vector.
class Admission {
 public:
  // Throws ConfigError for options that do not fit the elements.
  Admission(const VectorOptions& options, DType dtype, std::size_t count);

  Coder& coder() noexcept { return coder_; }
  const Coder& coder() const noexcept { return coder_; }
  // The only Update::format that is accepted.
  std::uint32_t format() const noexcept;
  // Whether updates have to be decoded or screened before they are folded. Otherwise they are
  // folded just as they lie in their slots.
  bool is_on() const noexcept { return screen_.is_on() || coder_.is_on(); }

  // To be called in a gather. Returns the updates to fold, with a copy in place of each update that
  // was decoded or clipped. Tells `segment` which updates are rejected, and notes in `gathered` the
  // senders of rejected and of clipped updates. The result is valid until the next call; a user's
  // fold may keep views of it until then.
  std::span<const dstorm::Update> admit(std::span<const dstorm::Update> updates,
                                        dstorm::Segment& segment, Gathered& gathered);
  // To be called when the gather has ended.
  void count(const Gathered& gathered) { screen_.count(gathered.rejected, gathered.clipped); }
  const Screened& counts() const noexcept { return screen_.counts(); }

 private:
  void check(const dstorm::Update& update) const;

  DType dtype_;
  std::size_t count_;
  Screen screen_;
  Coder coder_;
  std::vector<dstorm::Update> admitted_;
  std::vector<std::vector<std::byte>> copies_;  // of decoded and clipped updates
};

}  // namespace vol
