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

  // The codes of group g, and the bytes between one word's codes and the next one's; a tile's are so
  // many bytes.
  const unsigned char* codes(size_t g, size_t word = sizeof(__m256i)) const {
    return panel + panel_tiles * (matrix.head_bytes() + g * matrix.group_bytes()) + tile * word;
  }
  size_t stride(size_t word = sizeof(__m256i)) const { return panel_tiles * word; }
};

// The scales and offsets of a group of a part.
struct GroupScales {
  TF_INLINE GroupScales(const Part& part, size_t g)
      : matrix(part.matrix), first(part.tile * kTile),
        scale(matrix, part.panel, part.panel_tiles, g, 0),
        offset(matrix, part.panel, part.panel_tiles, g, matrix.zero ? 0 : 1) {}

  TF_INLINE __m256 Load(const ScaleRow& row, int tile) const {
    const size_t at = first + tile * kTile;
    if (matrix.scales == Scales::kHalf) return LoadHalves(row.values + 2 * at);
    if (matrix.scales == Scales::kFloat) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(row.values) + at);
    }
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row.values + at));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                         LoadHalves(row.steps + 2 * at));
  }
  TF_INLINE __m256 Scale(int tile) const { return Load(scale, tile); }
  TF_INLINE __m256 Offset(int tile) const {
    const __m256 value = Load(offset, tile);
    if (!matrix.zero) return value;
    return _mm256_mul_ps(value, _mm256_set1_ps(-static_cast<float>(matrix.zero)));
  }

  const Matrix& matrix;
  size_t first;
  ScaleRow scale, offset;
};

TF_INLINE __m256i LoadWords(const unsigned char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Word j of a bundle, spread out, for the 8 outputs at `at`.
template <int kBits, int j>
TF_INLINE __m256i SpreadWord(const unsigned char* at, size_t stride) {
  if constexpr (kBits == 8) {
    return LoadWords(at);
  } else {
    using Form = Bundle<kBits>;
    __m256i low = LoadWords(at + j / 2 * stride), high = LoadWords(at + (Form::kWords - 1) * stride);
    if constexpr (j % 2) low = _mm256_srli_epi32(low, 4);
    if constexpr (Form::Shift(j) > 0) high = _mm256_slli_epi32(high, Form::Shift(j));
    if constexpr (Form::Shift(j) < 0) high = _mm256_srli_epi32(high, -Form::Shift(j));
    return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(0x0f0f0f0f)),
                           _mm256_and_si256(high, _mm256_set1_epi32(Form::kRest)));
  }
}

// Totals [rows, tiles * 8] of a part to y, with bias and residual.
TF_AVX2 __attribute__((noinline)) inline void Finish(const Part& part, const Around& around,
                                                     size_t row, size_t rows, size_t tiles,
                                                     const float* totals, float* y) {
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
