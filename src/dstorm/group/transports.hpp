// The transports that a job may ask for, and the choice of this rank's adapter. A new transport is
// a folder in remote/, a row of kAdapters in transports.cpp, its sources in CMakeLists.txt, and a
// word among the conformance tests (cmake/tests.cmake).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dstorm/group.hpp"
#include "dstorm/host/control.hpp"
#include "dstorm/remote/transport/adapter.hpp"

namespace dstorm {

// A transport with an adapter.
struct AdapterRow {
  std::string_view name;
  // Throws ConfigError. `control` outlives the adapter.
  std::unique_ptr<remote::Adapter> (*open)(const GroupOptions& options,
                                           const host::Control& control);
};
// Those of this build. Tests add theirs, before any group is made.
std::vector<AdapterRow>& adapter_rows();

// A transport that a job may ask for: which ranks share memory, and whether others use adapters.
struct TransportRow {
  std::string_view name;
  host::Sharing sharing;
  remote::AdapterWish::Use adapter;
};
// Throws ConfigError with the names that there are.
TransportRow row_of(const std::string& transport);

// `options` and `control` outlive the wish.
remote::AdapterWish wish_of(const TransportRow& row, const GroupOptions& options,
                            const host::Control& control);

}  // namespace dstorm
