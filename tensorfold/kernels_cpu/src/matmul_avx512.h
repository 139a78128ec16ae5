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

// Scales or offsets of vector v of a panel.
TF_INLINE512 __m512 Scale(const Matrix& matrix, const unsigned char* at, int v) {
  at += v * kWide512 * matrix.scale_bytes();
  return matrix.half_scales ? LoadHalves(at) : _mm512_loadu_ps(at);
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
