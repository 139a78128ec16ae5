// What the AVX-512 kernels of matrices share.
#pragma once

#include <algorithm>

#include "avx512.h"
#include "matmul.h"

namespace tensorfold {

// Vectors of a panel's outputs.
constexpr int kVectors = kPanelTiles * kTile / kWide512;
constexpr size_t kWidth = kPanelTiles * kTile;

TF_INLINE512 __m512 LoadHalves(const void* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
}

// A whole panel of a matrix.
struct Panel {
  const Matrix& matrix;
  const unsigned char* data;
  size_t output;  // the first
};

// The scales and offsets of a group of a panel.
struct WideScales {
  TF_INLINE512 WideScales(const Panel& panel, size_t g)
      : matrix(panel.matrix), scale(matrix, panel.data, kPanelTiles, g, 0),
        offset(matrix, panel.data, kPanelTiles, g, matrix.zero ? 0 : 1) {}

  TF_INLINE512 __m512 Load(const ScaleRow& row, int v) const {
    const size_t at = v * kWide512;
    if (matrix.scales == Scales::kHalf) return LoadHalves(row.values + 2 * at);
    if (matrix.scales == Scales::kFloat) return _mm512_loadu_ps(row.values + 4 * at);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.values + at));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)),
                         LoadHalves(row.steps + 2 * at));
  }
  TF_INLINE512 __m512 Scale(int v) const { return Load(scale, v); }
  TF_INLINE512 __m512 Offset(int v) const {
    const __m512 value = Load(offset, v);
    if (!matrix.zero) return value;
    return _mm512_mul_ps(value, _mm512_set1_ps(-static_cast<float>(matrix.zero)));
  }

  const Matrix& matrix;
  ScaleRow scale, offset;
};

// Word j of a bundle of a panel, spread out, for the 16 outputs at `at`.
template <int kBits, int j>
TF_INLINE512 __m512i SpreadWide(const unsigned char* at) {
  if constexpr (kBits == 8) {
    return _mm512_loadu_si512(at);
  } else {
    using Form = Bundle<kBits>;
    __m512i low = _mm512_loadu_si512(at + j / 2 * kWidth * 4);
    __m512i high = _mm512_loadu_si512(at + (Form::kWords - 1) * kWidth * 4);
    if constexpr (j % 2) low = _mm512_srli_epi32(low, 4);
    if constexpr (Form::Shift(j) > 0) high = _mm512_slli_epi32(high, Form::Shift(j));
    if constexpr (Form::Shift(j) < 0) high = _mm512_srli_epi32(high, -Form::Shift(j));
    // (low & mask) | high
    constexpr int kAndOr = 0xea;
    return _mm512_ternarylogic_epi32(low, _mm512_set1_epi32(0x0f0f0f0f),
                                     _mm512_and_si512(high, _mm512_set1_epi32(Form::kRest)), kAndOr);
  }
}

// The first (0) or second (1) codes of 16 outputs' words of kE4M3, as halves: a sign stands twice
// until the mask.
template <int i>
TF_INLINE512 __m256i E4M3ToHalves(__m256i words) {
  if constexpr (i == 0) words = _mm256_slli_epi16(words, 8);
  return _mm256_and_si256(_mm256_srai_epi16(words, 1),
                          _mm256_set1_epi16(static_cast<int16_t>(E4M3ToHalf(0xff))));
}

// Asks for lines of a panel that will be read some time from now.
template <int kLines>
TF_INLINE512 void PrefetchLines(const unsigned char* at) {
  TF_UNROLL
  for (int line = 0; line < kLines; ++line) {
    _mm_prefetch(at + 64 * line + kAhead, _MM_HINT_T0);
  }
}

// A row's totals to y, with bias and residual. The last outputs of a panel may be padding.
TF_INLINE512 void Finish(const Panel& panel, const Around& around, size_t row,
                         const __m512 (&total)[kVectors], float* y) {
  const size_t outputs = panel.matrix.outputs;
  size_t column = panel.output;
  TF_UNROLL
  for (int v = 0; v < kVectors; ++v, column += kWide512) {
    if (column >= outputs) return;
    const size_t left = std::min(kWide512, outputs - column), at = row * outputs + column;
    const __mmask16 real = static_cast<__mmask16>((1u << left) - 1);
    __m512 value = total[v];
    if (around.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(real, around.bias + column));
    if (around.residual) {
      value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(real, around.residual + at));
    }
    _mm512_mask_storeu_ps(y + at, real, value);
  }
}

}  // namespace tensorfold
