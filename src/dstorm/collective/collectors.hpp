// Which members of an attempt of an Allreduce (allreduce.hpp) fold which parts of which vectors.
// For each part and host one member collects that part of the vectors of the host's members. On
// the host of the member that owns the part, that is the owner. On any other host the members take
// turns, and each writes the owner the sum of what it has collected. Every rank works this out for
// itself, from the members of the attempt and their hosts, which all ranks know alike.
#pragma once

#include <cstddef>
#include <vector>

namespace dstorm {

// Members are numbered by their place in the sorted order of their ranks.
class Collectors {
 public:
  // `hosts`: by member, the number of its host. Empty: all `members` count as one host.
  Collectors(std::size_t members, std::size_t parts, const std::vector<int>& hosts = {});

  // Whether the vectors of a host are added up there.
  bool are_by_host() const { return hosts_ > 1; }
  std::size_t owner(std::size_t part) const { return part % members_; }
  // The member that collects the part of this member's vector.
  std::size_t of(std::size_t part, std::size_t member) const {
    return are_by_host() ? table_[part * hosts_ + host_of_[member]] : owner(part);
  }
  // Whether `to` gets from `from` that part of its vector, or the sum of its host.
  bool sends(std::size_t from, std::size_t part, std::size_t to) const {
    const std::size_t collector = of(part, from);
    return from != to && (collector == to || (collector == from && owner(part) == to));
  }
  // The number of members that send() the part to its collector on the host of `to`, if that is
  // `to`.
  std::size_t senders(std::size_t part, std::size_t to) const;

 private:
  std::size_t members_;
  std::size_t hosts_ = 1;
  std::vector<std::size_t> host_of_;  // by member; empty: there is one
  std::vector<std::size_t> sizes_;    // by host: its members
  std::vector<std::size_t> table_;    // by part and host
};

}  // namespace dstorm
