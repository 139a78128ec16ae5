// What the AVX2 kernels of matrices share.
#pragma once

#include <algorithm>

#include "avx2.h"
#include "matmul.h"

namespace tensorfold {

TF_INLINE __m256 LoadHalves(const void* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
}

// Some tiles of a panel: where they begin, and how many tiles the panel has.
struct Part {
  const Matrix& matrix;
  const unsigned char* panel;
  size_t tile, panel_tiles;
  size_t output;  // the first

  size_t group_stride() const { return panel_tiles * matrix.group_bytes(); }
};

// Scales or offsets of a tile.
TF_INLINE __m256 LoadScale(const Matrix& matrix, const unsigned char* at) {
  if (matrix.half_scales) return LoadHalves(at);
  return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
}

// Totals [rows, tiles * 8] of a part to y, with bias and residual.
TF_AVX2 __attribute__((noinline)) inline void Finish(const Part& part, const Around& around, size_t row,
                                              size_t rows, size_t tiles, const float* totals,
                                              float* y) {
  const size_t outputs = part.matrix.outputs, column = part.output;
  const size_t width = std::min(tiles * kTile, outputs - column);
  for (size_t r = 0; r < rows; ++r, totals += tiles * kTile) {
    const size_t at = (row + r) * outputs + column;
    size_t i = 0;
    for (; i + kTile <= width; i += kTile) {
      __m256 total = _mm256_loadu_ps(totals + i);
      if (around.bias) total = _mm256_add_ps(total, _mm256_loadu_ps(around.bias + column + i));
      if (around.residual) total = _mm256_add_ps(total, _mm256_loadu_ps(around.residual + at + i));
      _mm256_storeu_ps(y + at + i, total);
    }
    for (; i < width; ++i) {
      float total = totals[i];
      if (around.bias) total += around.bias[column + i];
      if (around.residual) total += around.residual[at + i];
      y[at + i] = total;
    }
  }
}

}  // namespace tensorfold
