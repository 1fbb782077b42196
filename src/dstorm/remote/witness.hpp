// A rank's witness: a small process on the rank's host that proves to other hosts that the rank's
// process has ended, once it has.
//
// A refusal, a reset or silence on the network is no proof, because a firewall can cause them too.
// The witness has the rank's listening socket. So a process that calls the rank after its end is
// answered by the witness, with a token made with the job's key. Nobody is shown the token before,
// so the token is a proof whenever it arrives, and however often. A job works without a witness
// too; the end of a rank is then found by silence, like a cut.
//
// The program of the witness itself is in witness_main.cpp.
#pragma once

#include <sys/types.h>

#include <string>

#include "dstorm/host/fork.hpp"
#include "dstorm/remote/net/address.hpp"
#include "dstorm/remote/net/handshake.hpp"
#include "dstorm/remote/witness_order.hpp"

namespace dstorm::remote {

// The token that proves that `rank`, which listened at this address in the job with this key, has
// ended.
WitnessToken token_of(const net::Key& key, int rank, const net::Address& listening);
bool is_token(const WitnessToken& given, const WitnessToken& right);  // takes the same time for all

// For the thread that makes it.
class Witness {
 public:
  // The path of the program: beside the library that contains this code, or in dstorm/ there. Empty
  // if it is at neither place.
  static std::string find_program();

  // Starts the witness. `listener` is the rank's listening socket. Throws ConfigError with the
  // reason if it cannot be started.
  Witness(const std::string& program, int listener, const WitnessOrder& order);
  Witness(Witness&&) = default;
  Witness& operator=(Witness&&) = delete;
  ~Witness();  // dismisses it

  // The rank leaves. If `all_know`, every other host knows this, and the witness has ended when
  // this returns. Otherwise the witness stays and tells them.
  void dismiss(bool all_know) noexcept;

 private:
  UnforkedDescriptor control_;
};

}  // namespace dstorm::remote
