// Writes a server's messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "dstorm/collective/mail.hpp"
#include "vol/ps/table.hpp"

namespace vol::ps {

class MessageWriter {
 public:
  // The server of a table of so many clients, which sends through `mail`.
  MessageWriter(const TableOptions& options, int clients, dstorm::Mail& mail)
      : options_(options), clients_(clients), mail_(mail) {}

  std::uint64_t next_id() { return ++last_id_; }

  // To a client: an answer to its message `id`, or a word without a question.
  void answer(Head::Kind kind, int client, std::uint64_t id, std::int64_t row = 0,
              const std::string& text = {});
  // The rows that a client has asked for.
  void send_values(const Head& question, std::span<const std::byte> values, int client);
  // The same, to be filled: room for the values by the table's codec, which end() sends.
  std::byte* begin_values(const Head& question, std::size_t coded_bytes, int client);

  // To a server: a head alone, or rows, which fit a slot.
  void tell(int server, Head::Kind kind, std::uint64_t id, std::uint64_t clock = 0);
  // The same for words of which the latest of its kind is enough. It stays here while an earlier
  // message waits for a slot, so that a server that takes nothing makes no pile (P15).
  // send_latest() sends those that may go, and returns whether there were any.
  void tell_latest(int server, Head::Kind kind, std::uint64_t id, std::uint64_t clock = 0);
  bool send_latest();
  void send_rows(Head head, const Rows& rows, const std::byte* values, int server);

  // To a client, or to a server.
  void send_to_client(int client, const Head& head, std::span<const std::byte> body);
  void send_to_server(int server, const Head& head, std::span<const std::byte> body);
  void end() { mail_.end(); }

 private:
  std::byte* begin(int member, const Head& head, std::size_t bytes);

  const TableOptions& options_;
  int clients_;
  dstorm::Mail& mail_;
  std::uint64_t last_id_ = 0;
  std::map<std::pair<int, Head::Kind>, Head> latest_;  // by server and kind
};

}  // namespace vol::ps
