// Training kernels for linear models and matrix factorisation.
#pragma once

#include "learn/linear.hpp"
#include "learn/matrix.hpp"
#include "learn/order.hpp"
