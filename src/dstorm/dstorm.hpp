// dStorm: distributed one-sided remote memory. Everything a C++ user of segments of bytes needs.
// Jobs started by an MPI launcher include <dstorm/mpi.hpp> too.
#pragma once

#include "dstorm/bootstrap.hpp"
#include "dstorm/errors.hpp"
#include "dstorm/graph.hpp"
#include "dstorm/group.hpp"
#include "dstorm/segment.hpp"
