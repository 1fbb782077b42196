#include "vol/ps/message_writer.hpp"

#include <algorithm>
#include <cstring>

namespace vol::ps {
namespace {

void copy(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

}  // namespace

std::byte* MessageWriter::begin(int member, const Head& head, std::size_t bytes) {
  std::byte* const room = mail_.begin(member, kHeadBytes + bytes);
  std::memcpy(room, &head, sizeof(head));
  return room + kHeadBytes;
}

void MessageWriter::send_to_client(int client, const Head& head, std::span<const std::byte> body) {
  copy(begin(client, head, body.size()), body);
  end();
}

void MessageWriter::send_to_server(int server, const Head& head, std::span<const std::byte> body) {
  send_to_client(clients_ + server, head, body);
}

void MessageWriter::answer(Head::Kind kind, int client, std::uint64_t id, std::int64_t row,
                           const std::string& text) {
  Head head{};
  head.kind = kind;
  head.id = id;
  head.first = row;
  head.count = std::min(text.size(), kRoom);
  send_to_client(client, head, std::as_bytes(std::span(text)).first(head.count));
}

std::byte* MessageWriter::begin_values(const Head& question, std::size_t coded_bytes, int client) {
  Head reply = question;
  reply.kind = Head::Kind::kValues;
  return begin(client, reply, coded_bytes);
}

void MessageWriter::send_values(const Head& question, std::span<const std::byte> values,
                                int client) {
  Coder coder = options_.coder(question.count);
  std::byte* const room = begin_values(question, coder.bytes(), client);
  if (coder.is_on()) {
    encode(coder, options_.dtype, values.data(), room);
  } else {
    copy(room, values);
  }
  end();
}

void MessageWriter::tell(int server, Head::Kind kind, std::uint64_t id, std::uint64_t clock) {
  Head head{};
  head.kind = kind;
  head.id = id;
  head.clock = clock;
  send_to_server(server, head, {});
}

void MessageWriter::tell_latest(int server, Head::Kind kind, std::uint64_t id,
                                std::uint64_t clock) {
  Head head{};
  head.kind = kind;
  head.client = static_cast<std::uint32_t>(mail_.rank() - clients_);
  head.id = id;
  head.clock = clock;
  latest_[{server, kind}] = head;
}

bool MessageWriter::send_latest() {
  return std::erase_if(latest_, [this](const auto& each) {
           const int server = each.first.first;
           if (mail_.waiting_for(clients_ + server) != 0) return false;
           send_to_server(server, each.second, {});
           return true;
         }) != 0;
}

void MessageWriter::send_rows(Head head, const Rows& rows, const std::byte* values, int server) {
  const std::size_t key_bytes = rows.keys != nullptr ? rows.count * sizeof(std::int64_t) : 0;
  const std::size_t value_bytes = rows.count * options_.row_bytes();
  head.first = rows.first;
  head.count = rows.count;
  head.keys = rows.keys != nullptr ? KeyForm::kListed : KeyForm::kConsecutive;
  std::byte* const room = begin(clients_ + server, head, key_bytes + value_bytes);
  if (key_bytes != 0) std::memcpy(room, rows.keys, key_bytes);
  std::memcpy(room + key_bytes, values, value_bytes);
  end();
}

}  // namespace vol::ps
