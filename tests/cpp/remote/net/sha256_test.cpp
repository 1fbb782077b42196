// SHA-256 and the comparison of proofs. HMAC is in handshake_test.cpp.
#include "dstorm/remote/net/sha256.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "dstorm/remote/net/mac.hpp"

namespace dstorm::net {
namespace {

std::string hex(const Sha256::Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

Sha256::Digest hash_of(std::span<const std::byte> message) {
  Sha256 hash;
  hash.add(message);
  return hash.finish();
}

std::string hash_of(std::string_view text) { return hex(hash_of(std::as_bytes(std::span(text)))); }

TEST(Sha256, IsThatOfTheStandardsExamples) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, IsThatOfAMillionLetters) {
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PadsMessagesOfEveryLength) {  // against Python's hashlib
  std::vector<std::byte> message;
  Sha256 of_all;
  for (int bytes = 0; bytes <= 200; ++bytes) {
    of_all.add(hash_of(message));
    message.push_back(static_cast<std::byte>(bytes % 251));
  }
  EXPECT_EQ(hex(of_all.finish()),
            "64ef7c229fce2408b5336b6a542fea0e078c3a87d2da85cb3fc52e2008b65021");
}

TEST(Sha256, DoesNotDependOnHowTheMessageIsCut) {
  const std::string text(300, 'x');
  const std::span<const std::byte> message = std::as_bytes(std::span(text));
  for (std::size_t cut = 0; cut <= message.size(); ++cut) {
    Sha256 hash;
    hash.add(message.first(cut));
    hash.add(message.subspan(cut));
    ASSERT_EQ(hash.finish(), hash_of(message)) << cut;
  }
}

TEST(IsSame, ComparesEachByteAndTheSizes) {
  std::vector<std::byte> left(32, std::byte{7});
  for (std::size_t i = 0; i < left.size(); ++i) {
    std::vector<std::byte> right = left;
    EXPECT_TRUE(is_same(left, right));
    right[i] ^= std::byte{128};
    EXPECT_FALSE(is_same(left, right)) << i;
  }
  EXPECT_FALSE(is_same(left, std::span(left).first(31)));
  EXPECT_TRUE(is_same({}, {}));
}

}  // namespace
}  // namespace dstorm::net
