// A client's way from one edition of a table to the next (P10 and P11 in server.hpp).
#include <utility>

#include "dstorm/host/turn.hpp"
#include "vol/ps/client.hpp"

namespace vol::ps {

void Client::settle(Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "move", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  is_settling_ = true;
  wait_until([this] { return sent_.empty(); }, deadline, "move");  // P10 (b)
}

void Client::stop_server(Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "move", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  is_settling_ = true;
  send_to_server(Head::Kind::kStop, mail_.rank());
  // Other servers may have stopped, and take nothing more.
  const auto is_told = [this] { return mail_.waiting_for(servers_ + mail_.rank()) == 0; };
  wait_until(is_told, deadline, "move");
}

void Client::hand_over(Limit limit) {
  const dstorm::Turn turn(mail_.turns(), "leave", options_.name);
  const dstorm::Deadline deadline = deadline_of(limit);
  if (has_all_bye_) return;  // nobody needs the rows any more
  is_settling_ = true;
  send_held_back(deadline, "leave");
  wait_until([this] { return sent_.empty(); }, deadline, "leave");
  send_to_server(Head::Kind::kHandOver, mail_.rank());
  const auto is_done = [this] {
    return has_handed_over_ || !mail_.is_live(servers_ + mail_.rank());
  };
  wait_until(is_done, deadline, "leave");
}

void Client::take_over(Client& before) {
  held_back_.take_over(before.held_back_);
  has_closed_ = before.has_closed_;
  rows_in_place_ = before.rows_in_place_;
  bytes_out_before_ = before.bytes_out();
  bytes_in_before_ = before.bytes_in();
  bytes_own_before_ = before.bytes_own();
  failure_ = std::move(before.failure_);
  failed_ranks_ = std::move(before.failed_ranks_);
  more_failures_ = before.more_failures_;
  if (before.sent_.empty() || !failure_.empty()) return;
  note_failure("pushes that were not acknowledged when the ranks moved to another group are lost",
               before.awaited());
}

}  // namespace vol::ps
