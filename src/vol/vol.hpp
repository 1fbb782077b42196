// VOL: dense and sparse vectors over dStorm segments, with scatter and gather(fold).
#pragma once

#include "dstorm/dstorm.hpp"
#include "vol/dense.hpp"
#include "vol/fold.hpp"
#include "vol/sparse.hpp"
