// A libibverbs of the tests' own: RDMA adapters in memory, rxe1 to rxe4, by which the processes of
// one test write into one another's memory, and whose calls fail when they are told to. A test
// loads it before anything else would load libibverbs, which then is this one, as it has the same
// name.
//
// What it can do is what MALT asks for: reliable connections, one-sided writes, completions and
// events. A write arrives, or fails, while it is posted.
#pragma once

#include <cstdint>

#include "infiniband/verbs.h"

extern "C" {

// Makes what all processes share of the network between the adapters. A test calls it before it
// forks. Processes that are started each by itself share the network in the file that the
// environment variable FAKE_VERBS_WORLD names, which the first of them makes.
void fake_verbs_begin();

// Of this process's adapters. The `nth` call from now on, and the `count` - 1 after it, fail with
// `error`. Calls are named without "ibv_"; "completion" is the outcome of a write, "corruption" a
// write that arrives with one wrong bit, "silence" one of which nothing is heard, "lateness" one
// of more than a word that does not arrive before fake_verbs_arrive(). Later writes overtake a late
// one, as on a network with adaptive routing, but they complete after it.
void fake_verbs_fail(const char* call, std::uint64_t nth, std::uint64_t count, int error);
// How many have failed since.
std::uint64_t fake_verbs_failed(const char* call);
// How often it has been called.
std::uint64_t fake_verbs_calls(const char* call);
// Lets late writes arrive.
void fake_verbs_arrive();
// Queues, regions and whatever else has been made and not been destroyed.
std::uint64_t fake_verbs_objects();
// Tells of an event: of the device, or of all its queue pairs or completion queues.
void fake_verbs_event(enum ibv_event_type type);
// From now on every call fails, as when the adapter is pulled out.
void fake_verbs_remove();

// To be set before a device is opened.
struct FakeAdapter {
  std::uint32_t most_inline;      // bytes
  std::uint32_t longest_message;  // bytes
  std::uint32_t wire_mtu;         // packets of more bytes than these get lost
  std::uint16_t partitions[2];    // its P_Keys
  std::uint32_t subnet;           // what is sent to another gets lost
};
FakeAdapter* fake_verbs_adapter();  // of this process, all of them alike
}
