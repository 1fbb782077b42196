// Messages of a rank to the server of another rank's part of a table, as a client and as a server.
//
// input: the table (2 bytes), then messages: sender and length of the body (1 byte each), head
// (Head, 56 bytes), body
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "processes.hpp"
#include "target.hpp"
#include "vol/ps/server.hpp"

namespace fuzz {
namespace {

using vol::ps::Head;

constexpr int kRanks = 2;
constexpr int kMembers = 2 * kRanks;
constexpr int kServer = kRanks;  // of rank 0
constexpr std::size_t kMostMessages = 24;

// All members in this process: those of rank 1 say what the input says.
class Groups {
 public:
  Groups() {
    std::vector<std::thread> joining;
    for (int member = 0; member < kMembers; ++member) {
      joining.emplace_back([this, member] {
        testing_processes::ForkBootstrap bootstrap(*posts_, member, kMembers);
        groups_[static_cast<std::size_t>(member)] =
            dstorm::Group::join(bootstrap, {.transport = "shm"});
      });
    }
    for (std::thread& each : joining) each.join();
  }
  const std::shared_ptr<dstorm::Group>& of(int member) const {
    return groups_[static_cast<std::size_t>(member)];
  }

 private:
  testing_processes::Shared<testing_processes::Posts> posts_;
  std::array<std::shared_ptr<dstorm::Group>, kMembers> groups_;
};

vol::ps::TableOptions table_of(Input& input) {
  const auto what = input.take<std::uint8_t>();
  const auto more = input.take<std::uint8_t>();
  vol::ps::TableOptions options;
  options.name = "t";
  options.rows = 40;
  options.width = 3;
  options.dtype = vol::DType::kFloat64;
  options.ranks = {0, 1};
  options.replicas = what & 1;
  if ((what & 2) != 0) options.staleness = what >> 2 & 1;
  if ((what & 8) != 0) options.codec = vol::Codec::int8();
  if ((what & 16) != 0) options.hot = {1, 5, 30};
  if ((what & 32) != 0) options.rule.kind = vol::ps::Rule::Kind::kMomentum;
  if ((more & 1) != 0) options.cached_keys = 64;
  if ((more & 2) != 0) options.most_kept = 2000;
  return options;
}

void say(dstorm::Mail& mail, Input& input) {
  const std::size_t length = input.take<std::uint8_t>();
  const auto head = input.take<Head>();
  const std::span<const std::byte> body = input.bytes(length);
  std::vector<std::byte> message(vol::ps::kHeadBytes + body.size());
  std::memcpy(message.data(), &head, sizeof(head));
  if (!body.empty()) std::memcpy(message.data() + vol::ps::kHeadBytes, body.data(), body.size());
  mail.send(kServer, message);
}

}  // namespace

void run(Input input) {
  static const Groups groups;
  const vol::ps::TableOptions options = table_of(input);
  std::array<std::optional<dstorm::Mail>, kMembers> mails;
  std::atomic<bool> is_over{false};
  std::string refusal;
  std::thread serving([&] {
    try {
      vol::ps::Server server(groups.of(kServer), options);
      server.run();
    } catch (const dstorm::Error& error) {
      refusal = error.what();
    }
    is_over = true;
  });
  std::vector<std::thread> opening;
  for (int member = 0; member < kMembers; ++member) {
    if (member == kServer) continue;
    opening.emplace_back([&, member] {
      mails[static_cast<std::size_t>(member)].emplace(groups.of(member), "t", vol::ps::kSlotBytes,
                                                      vol::ps::kDepth);
    });
  }
  for (std::thread& each : opening) each.join();
  dstorm::Mail& own_client = *mails[0];
  dstorm::Mail& client = *mails[1];
  dstorm::Mail& server = *mails[kServer + 1];
  for (std::size_t i = 0; i < kMostMessages && !input.empty(); ++i) {
    say((input.take<std::uint8_t>() & 1) != 0 ? server : client, input);
  }
  const auto has_taken_all = [&] {
    for (std::optional<dstorm::Mail>& mail : mails) {
      if (!mail) continue;
      mail->take_in([](int, std::span<const std::byte>) {});
      mail->pump();
    }
    return client.has_taken_all(kServer) && server.has_taken_all(kServer) &&
           own_client.has_taken_all(kServer);
  };
  while (!has_taken_all() && !is_over) std::this_thread::yield();
  Head stop{};
  stop.kind = Head::Kind::kStop;
  std::array<std::byte, vol::ps::kHeadBytes> message{};
  std::memcpy(message.data(), &stop, sizeof(stop));
  own_client.send(kServer, message);
  while (!is_over) {
    has_taken_all();
    std::this_thread::yield();
  }
  serving.join();
  require(refusal.empty() || refusal.find("rank 1 wrote ") != std::string::npos,
          "an error names who has lied");
}

}  // namespace fuzz
