#include "dstorm/group/transports.hpp"

#include <algorithm>
#include <iterator>

#include "dstorm/errors.hpp"
#include "dstorm/remote/verbs/adapter.hpp"

namespace dstorm {
namespace {

using Use = remote::AdapterWish::Use;

constexpr AdapterRow kAdapters[] = {
    {"verbs",
     [](const GroupOptions& options,
        const host::Control& control) -> std::unique_ptr<remote::Adapter> {
       return std::make_unique<verbs::Adapter>(control, options.rdma);
     }},
};

constexpr TransportRow kAuto{"auto", host::Sharing::kPossible, Use::kIfThere};
constexpr TransportRow kShm{"shm", host::Sharing::kAll, Use::kNever};
constexpr TransportRow kTcp{"tcp", host::Sharing::kNone, Use::kNever};

// Opens the adapter that the job requires, or else the first one that can be opened.
std::unique_ptr<remote::Adapter> open_adapter(const TransportRow& row, const GroupOptions& options,
                                              const host::Control& control) {
  std::string why;
  for (const AdapterRow& one : adapter_rows()) {
    if (row.adapter == Use::kRequired && one.name != row.name) continue;
    try {
      return one.open(options, control);
    } catch (const ConfigError& error) {
      why += (why.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  throw ConfigError(why);
}

}  // namespace

std::vector<AdapterRow>& adapter_rows() {
  static std::vector<AdapterRow> rows(std::begin(kAdapters), std::end(kAdapters));
  return rows;
}

TransportRow row_of(const std::string& transport) {
  std::vector<TransportRow> rows{kAuto, kShm};
  for (const AdapterRow& one : adapter_rows()) {
    rows.push_back({one.name, host::Sharing::kNone, Use::kRequired});
  }
  rows.push_back(kTcp);
  const auto found = std::ranges::find(rows, transport, &TransportRow::name);
  if (found != rows.end()) return *found;
  std::string known;
  for (const TransportRow& row : rows) {
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  throw ConfigError("there is no transport '" + transport + "' in this build; choose " + known);
}

remote::AdapterWish wish_of(const TransportRow& row, const GroupOptions& options,
                            const host::Control& control) {
  return {row.adapter, std::string(row.name),
          [=, &options, &control] { return open_adapter(row, options, control); },
          options.rdma.is_set()};
}

}  // namespace dstorm
