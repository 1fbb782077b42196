// Training kernels for linear models and matrix factorisation, and their examples out of text.
#pragma once

#include "learn/matrix.hpp"
#include "learn/svmlight.hpp"
