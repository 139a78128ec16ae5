// The matmul kernels for AVX-512: as those for AVX2, with twice the outputs in a register and twice
// the registers. A sum is of one output, so its bits are those of AVX2. What fills no whole panel
// is left to AVX2.
#if defined(__x86_64__)

#include <algorithm>

#include "avx512.h"
#include "matmul.h"

namespace tensorfold {
namespace {

// Vectors of a panel's outputs.
constexpr int kVectors = kPanelTiles * kTile / kWide512;
constexpr size_t kWidth = kPanelTiles * kTile;
// From here on a panel is unpacked once for all rows.
constexpr size_t kManyRows = 16;
// Inputs unpacked together: 24 KiB of weights.
constexpr size_t kInputsAtOnce = 128;

TF_INLINE512 __m512 LoadHalves(const void* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
}

// Code i of each of 16 words, as floats too large by 16^i or 256^i (the last one as it is).
template <int kBits, int i>
TF_INLINE512 __m512 Unpack(__m512i words) {
  if constexpr (i == 32 / kBits - 1) {
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(words, kBits * i));
  } else {
    const int mask = ((1 << kBits) - 1) << (kBits * i);
    return _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(mask)));
  }
}

// sum += weight * x, for one input of a block of rows.
template <int kRows>
TF_INLINE512 void Accumulate(const __m512 (&weight)[kVectors], const float* x,
                             __m512 (&sum)[kRows][kVectors]) {
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512 value = _mm512_set1_ps(x[r]);
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(weight[v], value, sum[r][v]);
  }
}

template <int kBits, int kRows, int i = 0>
TF_INLINE512 void Codes(const __m512i (&words)[kVectors], const float* x,
                        __m512 (&sum)[kRows][kVectors]) {
  if constexpr (i < 32 / kBits) {
    __m512 weight[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) weight[v] = Unpack<kBits, i>(words[v]);
    Accumulate(weight, x + i * kRows, sum);
    Codes<kBits, kRows, i + 1>(words, x, sum);
  }
}

template <int kBits, int i = 0>
TF_INLINE512 void Spread(const __m512i (&words)[kVectors], float* out) {
  if constexpr (i < 32 / kBits) {
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      _mm512_store_ps(out + kWide512 * v, Unpack<kBits, i>(words[v]));
    }
    Spread<kBits, i + 1>(words, out + kWidth);
  }
}

TF_INLINE512 void LoadWords(const unsigned char* at, __m512i (&words)[kVectors]) {
  TF_UNROLL
  for (int v = 0; v < kVectors; ++v) words[v] = _mm512_loadu_si512(at + 64 * v);
}

template <int kRows>
TF_INLINE512 void Clear(__m512 (&sum)[kRows][kVectors]) {
  TF_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) sum[i / kVectors][i % kVectors] = _mm512_setzero_ps();
}

// Accumulate with weights from memory [kWidth].
template <int kRows>
TF_INLINE512 void MultiplyKept(const float* weights, const float* x,
                               __m512 (&sum)[kRows][kVectors]) {
  __m512 weight[kVectors];
  TF_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    weight[v] = _mm512_load_ps(weights + kWide512 * v);
    KeepInRegister(weight[v]);
  }
  Accumulate(weight, x, sum);
}

// The two forms of a matrix, with the parts of their namesakes for AVX2.
template <int kBits>
struct Quantised {
  static constexpr size_t kPerWord = 32 / kBits;
  static constexpr size_t kStride = kWidth * 4;  // bytes of a panel's words for one place

  TF_INLINE512 static __m512 LoadScale(const Matrix& matrix, const unsigned char* at, int v) {
    at += v * kWide512 * matrix.scale_bytes();
    return matrix.half_scales ? LoadHalves(at) : _mm512_loadu_ps(at);
  }

  static size_t Chunk(const Matrix& matrix) {
    return std::max<size_t>(1, kInputsAtOnce / matrix.group) * matrix.group;
  }

  template <int kRows>
  TF_INLINE512 static void Few(const Matrix& matrix, const unsigned char* at, const float* x,
                               const float* sums, __m512 (&total)[kRows][kVectors]) {
    const size_t words = matrix.group / kPerWord, groups = matrix.groups();
    const size_t scale_row = kWidth * matrix.scale_bytes();
    Clear(total);
    for (size_t g = 0; g < groups; ++g, at += 2 * scale_row, sums += kRows) {
      __m512 sum[kRows][kVectors];
      Clear(sum);
      for (size_t w = 0; w < words; ++w, at += kStride, x += kPerWord * kRows) {
        __m512i now[kVectors];
        LoadWords(at, now);
        Codes<kBits>(now, x, sum);
      }
      TF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m512 s = LoadScale(matrix, at, v), o = LoadScale(matrix, at + scale_row, v);
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          total[r][v] = _mm512_fmadd_ps(sum[r][v], s, total[r][v]);
          total[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(sums[r]), o, total[r][v]);
        }
      }
    }
  }

  // After the weights come each group's scales and offsets.
  TF_AVX512 static void SpreadOut(const Matrix& matrix, const unsigned char* panel, size_t first,
                                  size_t inputs, float* out) {
    const size_t size = matrix.group, words = size / kPerWord;
    const size_t scale_row = kWidth * matrix.scale_bytes();
    const unsigned char* at = panel + first / size * kPanelTiles * matrix.group_bytes();
    float* scales = out + inputs * kWidth;
    for (size_t g = 0; g < inputs / size; ++g, at += 2 * scale_row, scales += 2 * kWidth) {
      for (size_t w = 0; w < words; ++w, at += kStride, out += kPerWord * kWidth) {
        __m512i now[kVectors];
        LoadWords(at, now);
        Spread<kBits>(now, out);
      }
      for (int v = 0; v < kVectors; ++v) {
        _mm512_store_ps(scales + kWide512 * v, LoadScale(matrix, at, v));
        _mm512_store_ps(scales + kWidth + kWide512 * v, LoadScale(matrix, at + scale_row, v));
      }
    }
  }

  TF_AVX512 __attribute__((noinline)) static void Many(const Matrix& matrix, size_t first,
                                                       size_t inputs, const float* weights,
                                                       const float* x, const float* sums,
                                                       float* total) {
    constexpr int kRows = kRowBlock;
    const size_t size = matrix.group;
    const float* scales = weights + inputs * kWidth;
    const float* end = scales;
    x += first * kRows;
    sums += first / size * kRows;
    for (; weights < end; scales += 2 * kWidth, sums += kRows) {
      __m512 sum[kRows][kVectors];
      Clear(sum);
      for (size_t k = 0; k < size; ++k, x += kRows, weights += kWidth) {
        MultiplyKept(weights, x, sum);
      }
      TF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m512 s = _mm512_load_ps(scales + kWide512 * v);
        const __m512 o = _mm512_load_ps(scales + kWidth + kWide512 * v);
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float* at = total + r * kWidth + kWide512 * v;
          const __m512 scaled = _mm512_fmadd_ps(sum[r][v], s, _mm512_load_ps(at));
          _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_set1_ps(sums[r]), o, scaled));
        }
      }
    }
  }
};

template <Format kFormat>
struct Dense {
  static constexpr size_t kBytes = kFormat == Format::kF32 ? 4 : 2;
  static constexpr size_t kStride = kWidth * kBytes;

  static size_t Chunk(const Matrix&) { return kInputsAtOnce; }

  TF_INLINE512 static __m512 Load(const unsigned char* at) {
    if constexpr (kFormat == Format::kF32) {
      return _mm512_loadu_ps(at);
    } else if constexpr (kFormat == Format::kF16) {
      return LoadHalves(at);
    } else {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
  }

  template <int kRows>
  TF_INLINE512 static void Few(const Matrix& matrix, const unsigned char* at, const float* x,
                               const float*, __m512 (&total)[kRows][kVectors]) {
    Clear(total);
    for (size_t k = 0; k < matrix.inputs; ++k, at += kStride, x += kRows) {
      __m512 weight[kVectors];
      TF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        weight[v] = Load(at + v * kWide512 * kBytes);
        KeepInRegister(weight[v]);
      }
      Accumulate(weight, x, total);
    }
  }

  TF_AVX512 static void SpreadOut(const Matrix&, const unsigned char* panel, size_t first,
                                  size_t inputs, float* out) {
    const unsigned char* at = panel + first * kStride;
    for (size_t k = 0; k < inputs; ++k, at += kStride, out += kWidth) {
      for (int v = 0; v < kVectors; ++v) {
        _mm512_store_ps(out + kWide512 * v, Load(at + v * kWide512 * kBytes));
      }
    }
  }

  TF_AVX512 __attribute__((noinline)) static void Many(const Matrix&, size_t first, size_t inputs,
                                                       const float* weights, const float* x,
                                                       const float*, float* total) {
    constexpr int kRows = kRowBlock;
    __m512 sum[kRows][kVectors];
    TF_UNROLL
    for (int i = 0; i < kRows * kVectors; ++i) {
      sum[i / kVectors][i % kVectors] = _mm512_load_ps(total + kWide512 * i);
    }
    x += first * kRows;
    for (size_t k = 0; k < inputs; ++k, x += kRows, weights += kWidth) {
      MultiplyKept(weights, x, sum);
    }
    TF_UNROLL
    for (int i = 0; i < kRows * kVectors; ++i) {
      _mm512_store_ps(total + kWide512 * i, sum[i / kVectors][i % kVectors]);
    }
  }
};

// Where a panel's results go, and what is added to them.
struct Target {
  const Matrix& matrix;
  const Around& around;
  size_t output;  // the first
  float* y;

  // Totals [rows, kWidth] of the rows from `row`. The last outputs of a panel may be padding.
  TF_AVX512 void Finish(size_t row, size_t rows, const float* totals) const {
    for (size_t r = 0; r < rows; ++r, totals += kWidth) {
      const size_t at = (row + r) * matrix.outputs + output;
      for (size_t i = 0; i < kWidth && output + i < matrix.outputs; i += kWide512) {
        const size_t left = std::min(kWide512, matrix.outputs - output - i);
        const __mmask16 real = static_cast<__mmask16>((1u << left) - 1);
        __m512 total = _mm512_load_ps(totals + i);
        if (around.bias) {
          total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(real, around.bias + output + i));
        }
        if (around.residual) {
          total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(real, around.residual + at + i));
        }
        _mm512_mask_storeu_ps(y + at + i, real, total);
      }
    }
  }
};

template <class Form, int kRows>
TF_AVX512 __attribute__((noinline)) void FewRows(const Target& target, const unsigned char* panel,
                                                 const Prepared& prepared, size_t row) {
  const Matrix& matrix = target.matrix;
  __m512 total[kRows][kVectors];
  Form::Few(matrix, panel, prepared.x + row * matrix.inputs, prepared.sums + row * matrix.groups(),
            total);
  alignas(64) float totals[kRows * kWidth];
  TF_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) {
    _mm512_store_ps(totals + kWide512 * i, total[i / kVectors][i % kVectors]);
  }
  target.Finish(row, kRows, totals);
}

// All whole blocks of rows; the first row that is left.
template <class Form>
TF_AVX512 size_t ManyRows(const Target& target, const unsigned char* panel,
                          const Prepared& prepared) {
  const Matrix& matrix = target.matrix;
  const size_t rows = prepared.rows / kRowBlock * kRowBlock;
  const size_t chunk = std::min(Form::Chunk(matrix), matrix.inputs);
  // A group of 8 or more inputs has two rows of scales and offsets.
  float* weights = Buffer((chunk + chunk / 4 + rows) * kWidth);
  float* totals = weights + (chunk + chunk / 4) * kWidth;
  std::fill(totals, totals + rows * kWidth, 0.0f);
  for (size_t first = 0; first < matrix.inputs; first += chunk) {
    const size_t inputs = std::min(chunk, matrix.inputs - first);
    Form::SpreadOut(matrix, panel, first, inputs, weights);
    for (size_t row = 0; row < rows; row += kRowBlock) {
      Form::Many(matrix, first, inputs, weights, prepared.x + row * matrix.inputs,
                 prepared.sums + row * matrix.groups(), totals + row * kWidth);
    }
  }
  target.Finish(0, rows, totals);
  return rows;
}

template <class Form>
TF_AVX512 void Panel(const Target& target, const unsigned char* panel, const Prepared& prepared) {
  size_t row = prepared.rows >= kManyRows ? ManyRows<Form>(target, panel, prepared) : 0;
  for (size_t count; row < prepared.rows; row += count) {
    count = BlockRows(prepared.rows - row);
    if (count == kRowBlock) {
      FewRows<Form, kRowBlock>(target, panel, prepared, row);
    } else if (count == 2) {
      FewRows<Form, 2>(target, panel, prepared, row);
    } else {
      FewRows<Form, 1>(target, panel, prepared, row);
    }
  }
}

TF_AVX512 void PanelAvx512(const Matrix& matrix, const Around& around, const Prepared& prepared,
                           size_t panel, float* y) {
  if (matrix.panel_tiles(panel) < kPanelTiles) {
    return kMatMulAvx2.panel(matrix, around, prepared, panel, y);
  }
  const Target target{matrix, around, panel * kWidth, y};
  const unsigned char* data = matrix.panel(panel);
  switch (matrix.format) {
    case Format::kQ4:
      return Panel<Quantised<4>>(target, data, prepared);
    case Format::kQ8:
      return Panel<Quantised<8>>(target, data, prepared);
    case Format::kF32:
      return Panel<Dense<Format::kF32>>(target, data, prepared);
    case Format::kF16:
      return Panel<Dense<Format::kF16>>(target, data, prepared);
    case Format::kBF16:
      return Panel<Dense<Format::kBF16>>(target, data, prepared);
  }
}

}  // namespace

const MatMulKernels kMatMulAvx512 = {kMatMulAvx2.prepare, PanelAvx512};

}  // namespace tensorfold

#endif
