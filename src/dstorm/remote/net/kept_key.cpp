#include "dstorm/remote/net/kept_key.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "dstorm/errors.hpp"

namespace dstorm::net {
namespace {

void wipe(const Key* key) {
  void* page = const_cast<Key*>(key);
  explicit_bzero(page, sizeof(Key));
  munmap(page, sizeof(Key));
}

}  // namespace

KeptKey::KeptKey(const Key& key) {
  void* page =
      mmap(nullptr, sizeof(Key), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    throw ConfigError(std::string("no memory for the job's key: ") + std::strerror(errno));
  }
  madvise(page, sizeof(Key), MADV_DONTDUMP);
  page_ = std::shared_ptr<const Key>(new (page) Key(key), wipe);
}

KeptKey::KeptKey(Key&& key) : KeptKey(std::as_const(key)) {
  explicit_bzero(key.data(), key.size());
}

}  // namespace dstorm::net
