// Short causal convolutions of rows, one filter a channel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

// Everything is float and row-major. A null pointer leaves the bias out.
struct Convolution {
  size_t rows, channels, taps;  // taps: fewer than 64
  const int32_t* lane;          // [rows], -1 for padding
  const int32_t* position;      // [rows]
  const float* x;               // [rows, channels]
  const float* weight;          // [channels, taps], the row's own tap last
  const float* bias;            // [channels]
  float* kept;                  // [lanes, 2, 64, channels], as ops/chunks.py has it
  float* out;                   // [rows, channels]
};

// Writes every row's output, and the rows to what is kept of their lanes' last two chunks of 64
// positions. A channel is one sum: the bias, the row's own tap, then the others from the oldest.
// Before position 0 is zero.
void Convolve(const Convolution&);

}  // namespace tensorfold
