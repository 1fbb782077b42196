// The connections of the rendezvous and the launcher's listener, for python/malt/_rendezvous.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "dstorm/remote/net/listener.hpp"
#include "dstorm/remote/net/tls.hpp"

namespace malt_bindings {
namespace {

namespace net = dstorm::net;
using Tls = std::shared_ptr<net::TlsContext>;
using Step = net::Handshake::Step;

// A connection fails when the other end has acknowledged nothing for this time.
constexpr std::chrono::seconds kSuspectAfter{30};

net::KeptKey to_key(const py::bytes& given) {
  const std::string_view bytes = given;
  net::Key key{};
  if (bytes.size() != key.size()) throw dstorm::ConfigError("a job's key has 32 bytes");
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), key.size(), key.begin());
  return {key};  // Python has it, too
}

py::bytes to_bytes(const net::Mac& mac) {
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

[[noreturn]] void throw_lost(const std::string& why) {
  py::set_error(PyExc_ConnectionResetError, why.c_str());
  throw py::error_already_set();
}

// One connection, from the handshake on. The listener has done that of its callers. No method gives
// up the GIL, so another thread may close the connection at any time.
class Call {
 public:
  Call(int connected, const py::bytes& key, std::uint32_t number, std::uint64_t about,
       const std::optional<Tls>& tls)
      : tls_(tls.value_or(nullptr)),
        stream_(net::Stream::adopt(dstorm::Descriptor(connected), tls_.get(), kSuspectAfter)),
        handshake_(net::Handshake::caller(
            to_key(key), {.rank = number, .to = net::Introduction::kRendezvous, .number = about},
            {})) {}
  Call(net::Caller caller, Tls tls) : tls_(std::move(tls)), stream_(std::move(caller.stream)) {}

  std::optional<py::bytes> shake_hands() {
    const Step step = handshake_->advance(stream());
    if (step == Step::kWaiting) return std::nullopt;
    const net::Handshake done = *std::exchange(handshake_, std::nullopt);
    if (step == Step::kDone) return to_bytes(done.session_key(stream()));
    if (done.is_dropped()) throw_lost(done.reason());
    throw dstorm::ConfigError(done.reason());
  }
  std::size_t send(std::string_view bytes) {
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    const net::Moved moved = stream().send({&part, 1});
    if (moved.flow != net::Flow::kOpen) throw_lost(stream().error());
    return moved.bytes;
  }
  std::optional<py::bytes> receive(std::size_t most) {
    std::string bytes(most, '\0');
    const iovec room{bytes.data(), bytes.size()};
    const net::Moved moved = stream().receive({&room, 1});
    if (moved.flow == net::Flow::kFailed) throw_lost(stream().error());
    if (moved.bytes == 0 && moved.flow == net::Flow::kOpen) return std::nullopt;
    return py::bytes(bytes.data(), moved.bytes);
  }
  bool wants_write() { return handshake_ ? handshake_->wants_write() : stream().wants_write(); }
  bool has_buffered() { return stream().has_buffered(); }
  int fileno() { return stream().fd(); }
  void close() { stream_.reset(); }

 private:
  net::Stream& stream() {
    if (!stream_) throw_lost("the connection is closed");
    return *stream_;
  }

  Tls tls_;
  std::optional<net::Stream> stream_;
  std::optional<net::Handshake> handshake_;
};

using Proved = std::tuple<Call, py::bytes, std::string, std::uint32_t, std::uint64_t>;

class Listener {
 public:
  Listener(int listening, const py::bytes& key, double limit, const std::optional<Tls>& tls)
      : tls_(tls.value_or(nullptr)),
        listener_(std::in_place, dstorm::Descriptor(listening), to_key(key),
                  net::Introduction::kRendezvous, net::Address(), tls_.get(), *to_duration(limit),
                  kSuspectAfter) {}

  void expect_from(const std::string& host) {
    if (const auto address = net::Address::parse(host)) get().expect({&*address, 1});
  }
  std::vector<Proved> ready() {
    std::vector<Proved> proved;
    for (net::Caller& one : get().ready()) {
      const net::Introduction who = one.introduction;
      const py::bytes session_key = to_bytes(one.session_key);
      const std::string host = one.peer.host();
      proved.emplace_back(Call(std::move(one), tls_), session_key, host, who.rank, who.number);
    }
    return proved;
  }
  net::Listener& get() { return listener_.value(); }
  void close() { listener_.reset(); }

 private:
  Tls tls_;
  std::optional<net::Listener> listener_;
};

}  // namespace

void bind_rendezvous(py::module_& module) {
  py::class_<net::TlsContext, Tls>(module, "TlsContext", "The files of a folder of MALT_TLS.")
      .def(py::init([](const std::string& folder) {
             return std::make_shared<net::TlsContext>(folder, false);
           }),
           py::arg("folder"),
           "Load OpenSSL, and the certificates.\n\n"
           "Raises:\n    ConfigError: the file, and what is wrong with it; or what to install.");
  py::class_<Call>(module, "Call", "A connection of the rendezvous. Nothing here blocks.")
      .def(py::init<int, const py::bytes&, std::uint32_t, std::uint64_t,
                    const std::optional<Tls>&>(),
           py::arg("connected"), py::arg("key"), py::arg("number"), py::arg("about"),
           py::arg("tls"), "Take over a connected socket that does not block.")
      .def("shake_hands", &Call::shake_hands,
           "Go on with the handshake.\n\nReturns:\n    The session's key; None: not yet.\n\n"
           "Raises:\n    ConfigError: one end refuses.\n"
           "    ConnectionResetError: the other end has closed the connection.")
      .def(
          "send",
          [](Call& self, const py::buffer& data) {
            const py::buffer_info bytes = data.request();
            return self.send({static_cast<const char*>(bytes.ptr),
                              static_cast<std::size_t>(bytes.size * bytes.itemsize)});
          },
          py::arg("data"), "Send as much as there is room for.\n\nReturns:\n    How many bytes.")
      .def("receive", &Call::receive, py::arg("most"),
           "Return bytes that have arrived; none: the end; None: nothing has arrived.")
      .def_property_readonly("wants_write", &Call::wants_write,
                             "It waits for room: call again when fileno() is writable.")
      .def_property_readonly("has_buffered", &Call::has_buffered,
                             "Bytes have arrived that do not make fileno() readable.")
      .def("fileno", &Call::fileno)
      .def("close", &Call::close, "Idempotent.");
  py::class_<Listener>(module, "Listener", "Lets in those that prove the job's key.")
      .def(
          py::init<int, const py::bytes&, double, const std::optional<Tls>&>(),
          py::arg("listening"), py::arg("key"), py::arg("limit"), py::arg("tls"),
          "Take over a listening socket that does not block. A handshake may take `limit` seconds.")
      .def("expect_from", &Listener::expect_from, py::arg("host"),
           "Have callers from an address of the job take turns with all others.")
      .def(
          "expect_at_once",
          [](Listener& self, std::size_t callers) { self.get().expect_at_once(callers); },
          py::arg("callers"), "Let so many callers in at the same time.")
      .def("ready", &Listener::ready,
           "Take a turn at the handshakes.\n\nReturns:\n"
           "    Of each caller that has proved the key: the connection, the session's key, the\n"
           "    address it calls from, its number and what it says about itself.")
      .def_property_readonly("half_open", [](Listener& self) { return self.get().half_open(); })
      .def_property_readonly("last_refusal",
                             [](Listener& self) { return self.get().last_refusal(); })
      .def("fileno", [](Listener& self) { return self.get().fd(); })
      .def("close", &Listener::close, "Idempotent.");
}

}  // namespace malt_bindings
