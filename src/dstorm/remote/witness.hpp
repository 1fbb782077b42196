// A rank's witness: a small process of its host that proves to other hosts that the rank has ended, when it has.
//
// What a network says unasked, a refusal, a reset or silence, is no proof: a firewall can say it too. The
// witness has the rank's listening socket, so whoever calls the rank after its end is answered by the witness, with a
// token that is made with the job's key. Nobody has it before, so it proves what it says whenever it comes,
// and however often. Without a witness a job goes on: a rank's end is then found by silence, as a cut is.
//
// What the witness itself does is in witness_main.cpp.
#pragma once

#include <sys/types.h>

#include <string>

#include "dstorm/host/fork.hpp"
#include "dstorm/remote/tcp/address.hpp"
#include "dstorm/remote/tcp/handshake.hpp"
#include "dstorm/remote/witness_order.hpp"

namespace dstorm::remote {

// That `rank`, which listened at this address in the job of this key, has ended.
WitnessToken token_of(const tcp::Key& key, int rank, const tcp::Address& listening);
bool is_token(const WitnessToken& given, const WitnessToken& right);  // takes the same time for all

// For the thread that makes it.
class Witness {
 public:
  // The path of the program: beside the library that this is in, or in dstorm/ there. Empty if
  // it is at neither place.
  static std::string find_program();

  // Starts it. Throws ConfigError: why it cannot be.
  Witness(const std::string& program, int listener, const WitnessOrder& order);
  Witness(Witness&&) = default;
  Witness& operator=(Witness&&) = delete;
  ~Witness();  // dismisses it

  // The rank leaves. When all hosts know, the witness has ended as this returns; else it tells them.
  void dismiss(bool all_know) noexcept;

 private:
  UnforkedDescriptor control_;
};

}  // namespace dstorm::remote
