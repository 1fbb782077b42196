#include "dstorm/shm/transport.hpp"

#include <cstring>

namespace dstorm::shm {
namespace {

// A segment's memory: a header, a line per rank that says whether it has closed, the boards of the
// shared folds, then per rank its mailbox and its home, then one result. Everything a rank writes
// much is on pages of its own.
class Plan {
 public:
  Plan(const SegmentShape& shape, int ranks)
      : shape_(shape),
        ranks_(static_cast<std::size_t>(ranks)),
        mailboxes_(round_up((1 + ranks_ + Channel::kBoards * (ranks_ + 1)) * kLine, kPage)),
        stride_(shape.mailbox.bytes() + round_up(shape.home_bytes, kPage)) {}

  std::size_t closed(int rank) const { return (1 + static_cast<std::size_t>(rank)) * kLine; }
  std::size_t board(int which, int line) const {
    return (1 + ranks_ + static_cast<std::size_t>(which) * (ranks_ + 1) +
            static_cast<std::size_t>(line)) *
           kLine;
  }
  std::size_t mailbox(int rank) const {
    return mailboxes_ + static_cast<std::size_t>(rank) * stride_;
  }
  std::size_t home(int rank) const { return mailbox(rank) + shape_.mailbox.bytes(); }
  std::size_t result() const { return mailboxes_ + ranks_ * stride_; }
  std::size_t bytes() const { return result() + round_up(shape_.result_bytes, kPage); }
  std::size_t rank_bytes() const { return stride_; }
  std::size_t shared_bytes() const { return mailboxes_; }
  const SegmentShape& shape() const { return shape_; }

 private:
  SegmentShape shape_;
  std::size_t ranks_, mailboxes_, stride_;
};

class ShmChannel final : public Channel {
 public:
  ShmChannel(Control& control, Memory memory, const Plan& plan)
      : control_(control), memory_(std::move(memory)), plan_(plan) {}

  std::byte* mailbox(int sender) override { return memory_.data() + plan_.mailbox(sender); }
  std::byte* home(int rank) override {
    return plan_.shape().home_bytes == 0 ? nullptr : memory_.data() + plan_.home(rank);
  }
  std::byte* result() override {
    return plan_.shape().result_bytes == 0 ? nullptr : memory_.data() + plan_.result();
  }
  std::byte* board(int which, int line) override {
    return memory_.data() + plan_.board(which, line);
  }
  void deliver(int, std::span<const int> to) override { wake(to); }  // it is where they read it
  void wake(std::span<const int> ranks) override {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // W2
    for (int r : ranks) ring(control_.bell(r));
  }
  void close() noexcept override {
    closed(control_.rank()).store(1, std::memory_order_release);
    wake(control_.peers());
  }
  bool is_closed(int rank) const noexcept override {
    return closed(rank).load(std::memory_order_acquire) != 0;
  }

 private:
  std::atomic<std::uint32_t>& closed(int rank) const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + plan_.closed(rank));
  }

  Control& control_;
  Memory memory_;
  Plan plan_;
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(Group& group, Control& control) : group_(group), control_(control) {}

  std::string_view name() const noexcept override { return "shm"; }

  std::unique_ptr<Channel> open(std::string_view what, const SegmentShape& shape) override {
    const Plan plan(shape, control_.size());
    const int maker = group_.alive().front();
    const bool makes = maker == control_.rank();
    Memory memory;
    Offer mine{};
    if (makes)
      attempt(mine, [&] {
        memory = Memory::create(plan.bytes(), what);
        memory.reserve(0, plan.shared_bytes(), what);
        if (shape.result_bytes > 0) {
          memory.reserve(plan.result(), plan.bytes() - plan.result(), what);
        }
        mine.fd = memory.fd();
        mine.token = make_token();
        std::memcpy(memory.data(), &mine.token, sizeof(mine.token));
      });
    const Offer offer = agree(what, mine, maker);
    attempt(mine, [&] {
      if (!makes) memory = Memory::open(control_.pid(maker), offer.fd, plan.bytes(), what);
      if (std::memcmp(memory.data(), &offer.token, sizeof(offer.token)) != 0) {
        throw ConfigError("the memory offered for " + std::string(what) + " by rank " +
                          std::to_string(maker) + " is not what this rank mapped");
      }
      // Each rank's pages come from where it runs.
      memory.reserve(plan.mailbox(control_.rank()), plan.rank_bytes(), what);
    });
    agree(what, mine, maker);
    memory.close_fd();
    return std::make_unique<ShmChannel>(control_, std::move(memory), plan);
  }

 private:
  struct Offer {
    std::int32_t fd = -1;
    Token token{};
    char error[512] = {};
  };

  template <class Step>
  static void attempt(Offer& mine, Step&& step) {
    try {
      step();
    } catch (const Error& error) {
      std::strncpy(mine.error, error.what(), sizeof(mine.error) - 1);
    }
  }

  // Everyone's state, thrown as one error on all ranks if any failed; returns the maker's offer.
  Offer agree(std::string_view what, const Offer& mine, int maker) {
    const auto posts = group_.exchange(what, std::as_bytes(std::span(&mine, 1)));
    Offer offer;
    bool found = false;
    for (std::size_t r = 0; r < posts.size(); ++r) {
      if (!posts[r] || posts[r]->size() != sizeof(Offer)) continue;
      Offer post;
      std::memcpy(&post, posts[r]->data(), sizeof(post));
      post.error[sizeof(post.error) - 1] = '\0';
      if (post.error[0] != '\0') {
        throw ConfigError("rank " + std::to_string(r) + ": " + post.error);
      }
      if (static_cast<int>(r) == maker) {
        offer = post;
        found = true;
      }
    }
    if (!found) {
      throw PeerError("rank " + std::to_string(maker) + " died while it made " + std::string(what) +
                          "; make it again",
                      {maker});
    }
    return offer;
  }

  Group& group_;
  Control& control_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(Group& group, Control& control) {
  return std::make_unique<ShmTransport>(group, control);
}

}  // namespace dstorm::shm
