// VOL, the vector object library: dense and sparse vectors over dStorm segments, which the ranks of
// a job scatter and gather. Everything a C++ user of vectors needs.
#pragma once

#include "dstorm/dstorm.hpp"
#include "vol/dense.hpp"
#include "vol/fold.hpp"
#include "vol/sparse.hpp"
