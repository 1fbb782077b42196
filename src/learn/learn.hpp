// Training kernels for linear models and matrix factorisation.
#pragma once

#include "learn/matrix.hpp"
