// The arguments of the device's kernels: each takes one of these structs by value. This file is
// compiled by the C++ compiler and, at run time, by NVRTC, which has no standard headers.
#pragma once

namespace vol::device {

using Count = unsigned long long;

inline constexpr int kMostInputs = 128;  // of one fold; a kernel's arguments have 4 KB of room
inline constexpr int kBlock = 256;       // threads of a block
inline constexpr int kGroup = 256;       // elements that share a scale under int8

// How the elements of an update lie in memory: as they are, or as a codec leaves them (codec.hpp).
// kInt8: the scales (float), one for each group, then one byte for each element.
// kLargest: values of the vector's type, then their indices (int) in ascending order.
enum class Wire : int { kPlain, kFloat16, kBfloat16, kInt8, kLargest };

enum class FoldKind : int { kMean, kSum, kWeighted, kMedian, kTrimmedMean };

// fold_<dtype>: out[i] = the fold over j < inputs of input j's element begin + i, for i < count.
// Input `own` is `out` itself (its element i); -1 if none is. The others are updates of `total`
// elements, all in the same wire format (not kLargest), of which this call reads
// [begin, begin + count). `in[own]` is not read.
struct FoldArgs {
  void* out;
  Count begin;
  Count count;
  Count total;
  FoldKind kind;
  Wire wire;
  int inputs;
  int own;
  int trim;  // kTrimmedMean: so many of the smallest are left out, and as many of the largest
  const void* in[kMostInputs];
  double weight[kMostInputs];  // kWeighted
};

// encode_<dtype>: writes `count` elements of `in` to `out` in the format `wire` (kFloat16,
// kBfloat16 or kInt8).
struct EncodeArgs {
  const void* in;
  void* out;
  Count count;
  Wire wire;
};

// decode_<dtype>: out[i] = factor times element i of `in`, for i < count. Formats as for a fold;
// kPlain too.
struct DecodeArgs {
  void* out;
  const void* in;
  Count count;
  Wire wire;
  double factor;
};

// screen_<dtype>: block b writes to `result[b]` what it has found in its share of the elements.
struct Found {
  double sum_of_squares;
  Count nonfinite;
};
struct ScreenArgs {
  const void* in;
  Count count;
  Wire wire;
  Found* result;
};

// The `largest` elements of largest magnitude of kept + in (top-k with error feedback). In this
// order, on one stream, over `blocks` blocks of kBlock threads unless it says otherwise:
//   largest_begin_<dtype>    kept[i] += in[i], and clears `state` and `histogram`
//   for each byte of the key, the highest first:
//     largest_count_<dtype>  counts the keys that begin with the bytes found so far, by their next
//     largest_choose_<dtype> (1 block) finds the next byte of the least key to send
//   largest_tally_<dtype>    counts, for each block's share, the keys above and equal to the least
//   largest_place_<dtype>    (1 block) turns these counts into the blocks' places
//   largest_write_<dtype>    writes the values and indices in ascending order, and sets kept to 0
// The shares of the blocks are contiguous. Equal keys are sent from the first on.
struct LargestState {
  Count prefix;  // the bytes of the least key found so far, in place
  Count left;    // how many keys of that prefix are to be sent
  int byte;      // the next byte to find, counted from the lowest; -1: all are found
};
struct LargestTally {
  Count above;
  Count equal;
};
struct LargestArgs {
  const void* in;
  void* kept;
  void* out;  // values, then indices
  Count count;
  Count largest;  // from 1 to count
  int is_first;   // kept has no values yet
  unsigned blocks;
  LargestState* state;
  Count* histogram;       // 256
  LargestTally* tallies;  // one for each block
};

// place_<dtype>: out[index[j]] = value[j] * factor for j < largest, all other elements of `out`
// being zero already. Sets *wrong to 1 if the indices are not indices of `count` elements in rising
// order; it then never writes outside of `out`.
struct PlaceArgs {
  void* out;
  const void* in;  // values, then indices
  Count count;
  Count largest;
  double factor;
  int* wrong;
};

}  // namespace vol::device
