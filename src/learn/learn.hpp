// Training kernels for linear models, matrix factorisation and topic models, a parser of examples
// in text form, and the placing of examples and columns.
#pragma once

#include "learn/coordinate_descent.hpp"
#include "learn/dual_ascent.hpp"
#include "learn/factorization.hpp"
#include "learn/linear.hpp"
#include "learn/matrix.hpp"
#include "learn/order.hpp"
#include "learn/partition.hpp"
#include "learn/svmlight.hpp"
#include "learn/topic_inference.hpp"
#include "learn/topic_tokens.hpp"
