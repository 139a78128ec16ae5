// The matmul kernels for AVX2 with FMA and F16C.
//
// A step of few rows unpacks codes where it multiplies them: 8 weights cost a mask, a conversion
// and a multiply-add for each row. For one row that is about what memory delivers, from 4 rows up
// the multiply-adds are the bound. A step of many rows unpacks a part of a panel once, into the
// first-level cache, and then multiplies all rows by it; both ways do the same sums.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>

#include "matmul_avx2.h"
#include "matmul_codes_avx2.h"

namespace tensorfold {
namespace {

// From here on a part is unpacked once for all rows.
constexpr size_t kManyRows = 16;
// Tiles that are multiplied together by a block of 4 rows: 12 sums, 3 weights and an input.
constexpr int kPartTiles = 3;
// Inputs unpacked together: 12 KiB of weights.
constexpr size_t kInputsAtOnce = 128;

// sum += weight * x, for one input of a block of rows.
template <int kRows, int kTiles>
TF_INLINE void Accumulate(const __m256 (&weight)[kTiles], const float* x,
                          __m256 (&sum)[kRows][kTiles]) {
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m256 value = _mm256_broadcast_ss(x + r);
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) sum[r][t] = _mm256_fmadd_ps(weight[t], value, sum[r][t]);
  }
}

template <class Code, int i = 0, class Words, int kRows, int kTiles>
TF_INLINE void Multiply(const Words (&words)[kTiles], const float* x,
                        __m256 (&sum)[kRows][kTiles]) {
  if constexpr (i < Code::kWordCodes) {
    __m256 weight[kTiles];
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) weight[t] = Code::template Unpack<i>(words[t]);
    Accumulate(weight, x + i * kRows, sum);
    Multiply<Code, i + 1>(words, x, sum);
  }
}

template <class Code, int i = 0, class Words, int kTiles>
TF_INLINE void Spread(const Words (&words)[kTiles], float* out) {
  if constexpr (i < Code::kWordCodes) {
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      _mm256_store_ps(out + 8 * t, Code::template Unpack<i>(words[t]));
    }
    Spread<Code, i + 1>(words, out + 8 * kTiles);
  }
}

template <int kRows, int kTiles>
TF_INLINE void Clear(__m256 (&sum)[kRows][kTiles]) {
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) sum[r][t] = _mm256_setzero_ps();
  }
}

// Accumulate with weights from memory [kTiles * 8].
template <int kRows, int kTiles>
TF_INLINE void MultiplyKept(const float* weights, const float* x, __m256 (&sum)[kRows][kTiles]) {
  __m256 weight[kTiles];
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    weight[t] = _mm256_load_ps(weights + 8 * t);
    KeepInRegister(weight[t]);
  }
  Accumulate(weight, x, sum);
}

// The two forms of a matrix. Each has
//   Few     the totals of a block of rows, straight from the panel
//   Spread  the weights of `inputs` inputs from `first` as floats [inputs, kPartTiles * 8], and
//           then whatever else Many needs
//   Many    adds what these weights give 4 rows to their totals [4, kPartTiles * 8]
template <class Code>
struct Quantised {
  using Words = typename Code::Words;

  static size_t Chunk(const Matrix& matrix) {
    return std::max<size_t>(1, kInputsAtOnce / matrix.group) * matrix.group;
  }

  template <int kRows, int kTiles>
  TF_INLINE static void Few(const Part& whole, const float* x, const float* sums,
                            __m256 (&total)[kRows][kTiles]) {
    // A copy that no store can change: what follows from it is computed once for all groups.
    const Matrix matrix = whole.matrix;
    const Part part{matrix, whole.panel, whole.tile, whole.panel_tiles, whole.output};
    const size_t stride = part.stride(sizeof(Words)), steps = matrix.group / Code::kStepCodes;
    Clear(total);
    for (size_t g = 0; g < matrix.groups(); ++g, sums += kRows) {
      const unsigned char* at = part.codes(g, sizeof(Words));
      __m256 sum[kRows][kTiles];
      Clear(sum);
      for (size_t s = 0; s < steps; ++s, at += Code::kStepWords * stride) {
        Step<Code, kTiles>(at, stride, [&](const Words(&words)[kTiles], int first) TF_AVX2 {
          Multiply<Code>(words, x + first * kRows, sum);
        });
        x += Code::kStepCodes * kRows;
      }
      const GroupScales scales(part, g);
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const __m256 s = scales.Scale(t), o = Code::kOffsets ? scales.Offset(t) : s;
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          total[r][t] = _mm256_fmadd_ps(sum[r][t], s, total[r][t]);
          if constexpr (Code::kOffsets) {
            total[r][t] = _mm256_fmadd_ps(_mm256_broadcast_ss(sums + r), o, total[r][t]);
          }
        }
      }
    }
  }

  // After the weights come each group's scales and offsets.
  TF_AVX2 static void SpreadOut(const Part& part, size_t first, size_t inputs, float* out) {
    const Matrix& matrix = part.matrix;
    const size_t stride = part.stride(sizeof(Words)), size = matrix.group;
    float* scales = out + inputs * 8 * kPartTiles;
    for (size_t g = first / size; g < (first + inputs) / size; ++g, scales += 16 * kPartTiles) {
      const unsigned char* at = part.codes(g, sizeof(Words));
      for (size_t k = 0; k < size; k += Code::kStepCodes, at += Code::kStepWords * stride) {
        Step<Code, kPartTiles>(at, stride, [&](const Words(&words)[kPartTiles], int code) TF_AVX2 {
          Spread<Code>(words, out + code * 8 * kPartTiles);
        });
        out += Code::kStepCodes * 8 * kPartTiles;
      }
      const GroupScales group(part, g);
      for (int t = 0; t < kPartTiles; ++t) {
        _mm256_store_ps(scales + 8 * t, group.Scale(t));
        if constexpr (Code::kOffsets) {
          _mm256_store_ps(scales + 8 * (kPartTiles + t), group.Offset(t));
        }
      }
    }
  }

  TF_AVX2 __attribute__((noinline)) static void Many(const Matrix& matrix, size_t first,
                                                     size_t inputs, const float* weights,
                                                     const float* x, const float* sums,
                                                     float* total) {
    constexpr int kRows = kRowBlock, kTiles = kPartTiles;
    const size_t size = matrix.group;
    const float* scales = weights + inputs * 8 * kTiles;
    const float* end = scales;
    x += first * kRows;
    sums += first / size * kRows;
    for (; weights < end; scales += 16 * kTiles, sums += kRows) {
      __m256 sum[kRows][kTiles];
      Clear(sum);
      for (size_t k = 0; k < size; ++k, x += kRows, weights += 8 * kTiles) {
        MultiplyKept(weights, x, sum);
      }
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const __m256 s = _mm256_load_ps(scales + 8 * t);
        const __m256 o = Code::kOffsets ? _mm256_load_ps(scales + 8 * (kTiles + t)) : s;
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float* at = total + 8 * (r * kTiles + t);
          __m256 scaled = _mm256_fmadd_ps(sum[r][t], s, _mm256_load_ps(at));
          if constexpr (Code::kOffsets) {
            scaled = _mm256_fmadd_ps(_mm256_broadcast_ss(sums + r), o, scaled);
          }
          _mm256_store_ps(at, scaled);
        }
      }
      asm volatile("" ::: "memory");  // The totals stay in memory: registers are for the sums.
    }
  }
};

template <Format kFormat>
struct Dense {
  static constexpr size_t kBytes = kFormat == Format::kF32 ? 4 : 2;

  static size_t Chunk(const Matrix&) { return kInputsAtOnce; }

  TF_INLINE static __m256 Load(const unsigned char* at) {
    if constexpr (kFormat == Format::kF32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
    } else if constexpr (kFormat == Format::kF16) {
      return LoadHalves(at);
    } else {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
  }

  template <int kRows, int kTiles>
  TF_INLINE static void Few(const Part& part, const float* x, const float*,
                            __m256 (&total)[kRows][kTiles]) {
    const size_t stride = part.panel_tiles * kTile * kBytes;
    const unsigned char* at = part.panel + part.tile * kTile * kBytes;
    Clear(total);
    for (size_t k = 0; k < part.matrix.inputs; ++k, at += stride, x += kRows) {
      __m256 weight[kTiles];
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        weight[t] = Load(at + t * kTile * kBytes);
        KeepInRegister(weight[t]);
      }
      Accumulate(weight, x, total);
    }
  }

  TF_AVX2 static void SpreadOut(const Part& part, size_t first, size_t inputs, float* out) {
    const size_t stride = part.panel_tiles * kTile * kBytes;
    const unsigned char* at = part.panel + first * stride + part.tile * kTile * kBytes;
    for (size_t k = 0; k < inputs; ++k, at += stride, out += 8 * kPartTiles) {
      for (int t = 0; t < kPartTiles; ++t) {
        _mm256_store_ps(out + 8 * t, Load(at + t * kTile * kBytes));
      }
    }
  }

  TF_AVX2 __attribute__((noinline)) static void Many(const Matrix&, size_t first, size_t inputs,
                                                     const float* weights, const float* x,
                                                     const float*, float* total) {
    constexpr int kRows = kRowBlock, kTiles = kPartTiles;
    __m256 sum[kRows][kTiles];
    TF_UNROLL
    for (int i = 0; i < kRows * kTiles; ++i) {
      sum[i / kTiles][i % kTiles] = _mm256_load_ps(total + 8 * i);
    }
    x += first * kRows;
    for (size_t k = 0; k < inputs; ++k, x += kRows, weights += 8 * kTiles) {
      MultiplyKept(weights, x, sum);
    }
    TF_UNROLL
    for (int i = 0; i < kRows * kTiles; ++i) {
      _mm256_store_ps(total + 8 * i, sum[i / kTiles][i % kTiles]);
    }
  }
};

template <class Form, int kRows, int kTiles>
TF_AVX2 __attribute__((noinline)) void FewRows(const Part& part, const Around& around,
                                               const Prepared& prepared, size_t row, float* y) {
  __m256 total[kRows][kTiles];
  Form::Few(part, prepared.x + row * part.matrix.inputs, prepared.sums + row * part.matrix.groups(),
            total);
  alignas(32) float totals[kRows * kTiles * 8];
  TF_UNROLL
  for (int i = 0; i < kRows * kTiles; ++i) {
    _mm256_store_ps(totals + 8 * i, total[i / kTiles][i % kTiles]);
  }
  Finish(part, around, row, kRows, kTiles, totals, y);
}

template <class Form, int kTiles>
TF_AVX2 void RowsFrom(size_t row, const Part& part, const Around& around, const Prepared& prepared,
                      float* y) {
  for (size_t count; row < prepared.rows; row += count) {
    count = BlockRows(prepared.rows - row);
    if (count == kRowBlock) {
      FewRows<Form, kRowBlock, kTiles>(part, around, prepared, row, y);
    } else if (count == 2) {
      FewRows<Form, 2, kTiles>(part, around, prepared, row, y);
    } else {
      FewRows<Form, 1, kTiles>(part, around, prepared, row, y);
    }
  }
}

// What one panel or one block of rows needs.
thread_local Scratch scratch;

// All whole blocks of rows; the first row that is left.
template <class Form>
TF_AVX2 size_t ManyRows(const Part& part, const Around& around, const Prepared& prepared,
                        float* y) {
  constexpr size_t kWidth = 8 * kPartTiles;
  const Matrix& matrix = part.matrix;
  const size_t rows = prepared.rows / kRowBlock * kRowBlock;
  const size_t chunk = std::min(Form::Chunk(matrix), matrix.inputs);
  // A group of 8 or more inputs has two rows of scales and offsets.
  float* weights = scratch.At((chunk + chunk / 4 + rows) * kWidth);
  float* totals = weights + (chunk + chunk / 4) * kWidth;
  std::fill(totals, totals + rows * kWidth, 0.0f);
  for (size_t first = 0; first < matrix.inputs; first += chunk) {
    const size_t inputs = std::min(chunk, matrix.inputs - first);
    Form::SpreadOut(part, first, inputs, weights);
    for (size_t row = 0; row < rows; row += kRowBlock) {
      Form::Many(matrix, first, inputs, weights, prepared.x + row * matrix.inputs,
                 prepared.sums + row * matrix.groups(), totals + row * kWidth);
    }
  }
  Finish(part, around, 0, rows, kPartTiles, totals, y);
  return rows;
}

template <class Form>
TF_AVX2 void Panel(Part part, const Around& around, const Prepared& prepared, float* y) {
  if (prepared.rows == 1 && part.panel_tiles == kPanelTiles) {
    // The whole panel: enough sums to wait for none.
    return FewRows<Form, 1, kPanelTiles>(part, around, prepared, 0, y);
  }
  const auto advance = [&](size_t tiles) {
    part.tile += tiles;
    part.output += tiles * kTile;
  };
  for (; part.tile + kPartTiles <= part.panel_tiles; advance(kPartTiles)) {
    const size_t row =
        prepared.rows >= kManyRows ? ManyRows<Form>(part, around, prepared, y) : 0;
    RowsFrom<Form, kPartTiles>(row, part, around, prepared, y);
  }
  for (; part.tile < part.panel_tiles; advance(1)) {
    RowsFrom<Form, 1>(0, part, around, prepared, y);
  }
}

TF_AVX2 void PanelAvx2(const Matrix& matrix, const Around& around, const Prepared& prepared,
                       size_t panel, float* y) {
  const Part part{matrix, matrix.panel(panel), 0, matrix.panel_tiles(panel),
                  panel * kPanelTiles * kTile};
  switch (matrix.format) {
    case Format::kQ4:
      return Panel<Quantised<Integers<4>>>(part, around, prepared, y);
    case Format::kQ5:
      return Panel<Quantised<Integers<5>>>(part, around, prepared, y);
    case Format::kQ6:
      return Panel<Quantised<Integers<6>>>(part, around, prepared, y);
    case Format::kQ8:
      return Panel<Quantised<Integers<8>>>(part, around, prepared, y);
    case Format::kE4M3:
      return Panel<Quantised<Floats>>(part, around, prepared, y);
    case Format::kF32:
      return Panel<Dense<Format::kF32>>(part, around, prepared, y);
    case Format::kF16:
      return Panel<Dense<Format::kF16>>(part, around, prepared, y);
    case Format::kBF16:
      return Panel<Dense<Format::kBF16>>(part, around, prepared, y);
  }
}

// x before the product, 8 inputs at `k`.
TF_INLINE __m256 Before(const Around& around, const float* x, size_t inputs, size_t k) {
  const __m256 value = _mm256_loadu_ps(x + k);
  if (around.gate == Gate::kNone) return value;
  __m256 power = value;
  if (around.gate == Gate::kGelu) {
    const __m256 square = _mm256_mul_ps(value, value);
    power = _mm256_mul_ps(
        value, _mm256_fmadd_ps(square, _mm256_set1_ps(kGeluCubed), _mm256_set1_ps(kGelu)));
  }
  const __m256 e = Exp(_mm256_sub_ps(_mm256_setzero_ps(), power));
  const __m256 gate = _mm256_div_ps(value, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
  return _mm256_mul_ps(gate, _mm256_loadu_ps(x + inputs + k));
}

// One row: values [inputs], and its sums of groups `stride` apart.
TF_AVX2 void PrepareRow(const Matrix& matrix, const Around& around, const float* x, size_t stride,
                        float* values, float* sums) {
  const size_t inputs = matrix.inputs;
  __m256 squares = _mm256_setzero_ps();
  for (size_t k = 0; k < inputs; k += 8) {
    const __m256 value = Before(around, x, inputs, k);
    if (around.norm) squares = _mm256_fmadd_ps(value, value, squares);
    _mm256_storeu_ps(values + k, value);
  }
  if (around.norm) {
    const float mean = Sum(squares) / static_cast<float>(inputs);
    const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(mean + around.epsilon));
    for (size_t k = 0; k < inputs; k += 8) {
      const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(values + k), factor);
      _mm256_storeu_ps(values + k, _mm256_mul_ps(value, _mm256_loadu_ps(around.norm + k)));
    }
  }
  if (!matrix.bits()) return;
  // 16^-i or 256^-i for code i of a word, 1 for the last (see Unpack); floats are too small.
  const __m256 power =
      matrix.floats() ? _mm256_set1_ps(kE4M3Scale)
      : matrix.format == Format::kQ4
          ? _mm256_setr_ps(1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1)
          : _mm256_setr_ps(1, 0x1p-8f, 0x1p-16f, 1, 1, 0x1p-8f, 0x1p-16f, 1);
  for (size_t g = 0; g < matrix.groups(); ++g) {
    __m256 sum = _mm256_setzero_ps();
    for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; k += 8) {
      const __m256 value = _mm256_loadu_ps(values + k);
      sum = _mm256_add_ps(sum, value);
      _mm256_storeu_ps(values + k, _mm256_mul_ps(value, power));
    }
    sums[g * stride] = Sum(sum);
  }
}

TF_AVX2 void PrepareAvx2(const Matrix& matrix, const Around& around, const float* x, size_t rows,
                         float* ready, float* sums) {
  const size_t inputs = matrix.inputs;
  if (inputs % 8) return kMatMulPortable.prepare(matrix, around, x, rows, ready, sums);
  if (rows == 1) return PrepareRow(matrix, around, x, 1, ready, sums);
  const size_t x_row = around.x_row(inputs);
  float* values = scratch.At(kRowBlock * inputs);
  for (size_t r = 0; r < rows; ++r) {
    PrepareRow(matrix, around, x + r * x_row, rows, values + r * inputs, sums + r);
  }
  if (rows < kRowBlock) {
    for (size_t k = 0; k < inputs; ++k) {
      for (size_t r = 0; r < rows; ++r) ready[k * rows + r] = values[r * inputs + k];
    }
    return;
  }
  for (size_t k = 0; k < inputs; k += 4) {
    __m128 a = _mm_load_ps(values + k), b = _mm_load_ps(values + inputs + k);
    __m128 c = _mm_load_ps(values + 2 * inputs + k), d = _mm_load_ps(values + 3 * inputs + k);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(ready + 4 * k, a);
    _mm_storeu_ps(ready + 4 * k + 4, b);
    _mm_storeu_ps(ready + 4 * k + 8, c);
    _mm_storeu_ps(ready + 4 * k + 12, d);
  }
}

}  // namespace

const MatMulKernels kMatMulAvx2 = {PrepareAvx2, PanelAvx2};

}  // namespace tensorfold

#endif
