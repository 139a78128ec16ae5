// The matmul kernels for AVX2 with FMA and F16C.
//
// Per 8 weights and row: one multiply-add, and shared by the rows of a block one mask and one
// conversion. Bound by the multiply-adds from 4 rows up, by mask and conversion for one row.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>

#include "avx2.h"
#include "matmul.h"

namespace tensorfold {
namespace {

TF_INLINE __m256 LoadHalves(const void* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
}

template <bool kHalf>
TF_INLINE __m256 LoadScales(const unsigned char* scales, size_t group) {
  if constexpr (kHalf) return LoadHalves(scales + group * kTile * 2);
  return _mm256_loadu_ps(reinterpret_cast<const float*>(scales + group * kTile * 4));
}

// The masks lie in memory, where `vpand` reads them; in registers they would crowd out the sums.
template <int kBits>
struct Masks {
  alignas(32) uint32_t of[32 / kBits - 1][kTile];
};

template <int kBits>
constexpr Masks<kBits> MakeMasks() {
  Masks<kBits> masks{};
  for (int i = 0; i + 1 < 32 / kBits; ++i) {
    for (size_t j = 0; j < kTile; ++j) masks.of[i][j] = ((1u << kBits) - 1) << (kBits * i);
  }
  return masks;
}

template <int kBits>
constexpr Masks<kBits> kMasks = MakeMasks<kBits>();

// Code i of each of 8 words, as floats too large by 16^i or 256^i (the last one as it is).
template <int kBits, int i>
TF_INLINE __m256 Unpack(__m256i words) {
  if constexpr (i == 32 / kBits - 1) {
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(words, kBits * i));
  } else {
    __m256i code;
    asm("vpand %2, %1, %0" : "=x"(code) : "x"(words), "m"(kMasks<kBits>.of[i]));
    return _mm256_cvtepi32_ps(code);
  }
}

template <int kBits, int kRows, int kTiles, int i = 0>
TF_INLINE void Codes(const __m256i (&words)[kTiles], const float* x, size_t inputs,
                     __m256 (&sum)[kRows][kTiles]) {
  if constexpr (i < 32 / kBits) {
    __m256 weight[kTiles];
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) weight[t] = Unpack<kBits, i>(words[t]);
    TF_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * inputs + i);
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) sum[r][t] = _mm256_fmadd_ps(weight[t], value, sum[r][t]);
    }
    Codes<kBits, kRows, kTiles, i + 1>(words, x, inputs, sum);
  }
}

template <int kBits, int kRows, int kTiles>
TF_INLINE void Word(const unsigned char* at, size_t stride, const float* x, size_t inputs,
                    __m256 (&sum)[kRows][kTiles]) {
  __m256i words[kTiles];
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    words[t] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + t * stride));
  }
  // With few rows memory is the bound: ask for the next tiles in time.
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) _mm_prefetch(at + (t + kTiles) * stride, _MM_HINT_T0);
  Codes<kBits>(words, x, inputs, sum);
}

template <int kRows, int kTiles>
TF_INLINE void Clear(__m256 (&sum)[kRows][kTiles]) {
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) sum[r][t] = _mm256_setzero_ps();
  }
}

// Where the output of a block goes.
struct Target {
  const Matrix& matrix;
  const Around& around;
  size_t row, tile;
  float* y;
};

template <int kRows, int kTiles>
TF_INLINE void Store(const Target& target, const __m256 (&total)[kRows][kTiles]) {
  const size_t outputs = target.matrix.outputs;
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    const size_t column = (target.tile + t) * kTile;
    TF_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const size_t at = (target.row + r) * outputs + column;
      const float* residual = target.around.residual ? target.around.residual + at : nullptr;
      if (column + kTile <= outputs) {
        __m256 value = total[r][t];
        const float* bias = target.around.bias;
        if (bias) value = _mm256_add_ps(value, _mm256_loadu_ps(bias + column));
        if (residual) value = _mm256_add_ps(value, _mm256_loadu_ps(residual));
        _mm256_storeu_ps(target.y + at, value);
        continue;
      }
      alignas(32) float last[kTile];
      _mm256_store_ps(last, total[r][t]);
      for (size_t i = 0; column + i < outputs; ++i) {
        if (target.around.bias) last[i] += target.around.bias[column + i];
        if (residual) last[i] += residual[i];
        target.y[at + i] = last[i];
      }
    }
  }
}

template <int kBits, bool kHalf>
struct Quantised {
  template <int kRows, int kTiles>
  TF_AVX2 static void Run(const Prepared& prepared, const Target& target) {
    constexpr size_t kPerWord = 32 / kBits;
    const Matrix& matrix = target.matrix;
    const size_t inputs = matrix.inputs, groups = matrix.groups(), stride = matrix.tile_bytes();
    const size_t words_per_group = matrix.group / kPerWord;
    const unsigned char* codes = matrix.codes(target.tile);
    const unsigned char* scale = matrix.scale(target.tile);
    const unsigned char* offset = matrix.offset(target.tile);
    const float* x = prepared.x + target.row * inputs;
    const float* sums = prepared.sums + target.row * groups;
    __m256 total[kRows][kTiles];
    Clear(total);
    for (size_t g = 0; g < groups; ++g) {
      __m256 sum[kRows][kTiles];
      Clear(sum);
      for (size_t w = g * words_per_group; w < (g + 1) * words_per_group; ++w) {
        Word<kBits>(codes + w * sizeof(__m256i), stride, x + w * kPerWord, inputs, sum);
      }
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const __m256 s = LoadScales<kHalf>(scale + t * stride, g);
        const __m256 o = LoadScales<kHalf>(offset + t * stride, g);
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          total[r][t] = _mm256_fmadd_ps(sum[r][t], s, total[r][t]);
          const __m256 of_x = _mm256_broadcast_ss(sums + r * groups + g);
          total[r][t] = _mm256_fmadd_ps(of_x, o, total[r][t]);
        }
      }
    }
    Store(target, total);
  }
};

template <Format kFormat>
struct Dense {
  template <int kRows, int kTiles>
  TF_AVX2 static void Run(const Prepared& prepared, const Target& target) {
    const size_t inputs = target.matrix.inputs, stride = target.matrix.tile_bytes();
    const unsigned char* values = target.matrix.codes(target.tile);
    const float* x = prepared.x + target.row * inputs;
    __m256 total[kRows][kTiles];
    Clear(total);
    for (size_t k = 0; k < inputs; ++k) {
      __m256 weight[kTiles];
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) weight[t] = Load(values + t * stride, k);
      TF_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m256 value = _mm256_broadcast_ss(x + r * inputs + k);
        TF_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          total[r][t] = _mm256_fmadd_ps(weight[t], value, total[r][t]);
        }
      }
    }
    Store(target, total);
  }

  TF_INLINE static __m256 Load(const unsigned char* tile, size_t input) {
    if constexpr (kFormat == Format::kF32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(tile + input * kTile * 4));
    } else if constexpr (kFormat == Format::kF16) {
      return LoadHalves(tile + input * kTile * 2);
    } else {
      const auto* bits = reinterpret_cast<const __m128i*>(tile + input * kTile * 2);
      const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(bits));
      return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
  }
};

// kRows rows from target.row over the tiles [first, end), kTiles at a time and then one by one.
template <class Kernel, int kRows, int kTiles>
TF_AVX2 void Rows(const Prepared& prepared, Target target, size_t end) {
  for (; target.tile + kTiles <= end; target.tile += kTiles) {
    Kernel::template Run<kRows, kTiles>(prepared, target);
  }
  for (; target.tile < end; ++target.tile) Kernel::template Run<kRows, 1>(prepared, target);
}

template <class Kernel>
TF_AVX2 void Block(const Prepared& prepared, Target target, size_t end) {
  // Three tiles stay in the first-level cache while all rows pass over them.
  const size_t first = target.tile, in_fours = prepared.rows / 4 * 4;
  for (size_t tile = first; tile < end && in_fours; tile += 3) {
    target.tile = tile;
    for (target.row = 0; target.row < in_fours; target.row += 4) {
      Rows<Kernel, 4, 3>(prepared, target, std::min(tile + 3, end));
    }
  }
  target.tile = first;
  target.row = in_fours;
  switch (prepared.rows % 4) {
    case 1:
      return Rows<Kernel, 1, 4>(prepared, target, end);
    case 2:
      return Rows<Kernel, 2, 3>(prepared, target, end);
    case 3:
      return Rows<Kernel, 3, 3>(prepared, target, end);
    default:
      return;
  }
}

TF_AVX2 void BlockAvx2(const Matrix& matrix, const Around& around, const Prepared& prepared,
                       size_t first, size_t count, float* y) {
  const Target target{matrix, around, 0, first, y};
  const size_t end = first + count;
  switch (matrix.format) {
    case Format::kQ4:
      return matrix.half_scales ? Block<Quantised<4, true>>(prepared, target, end)
                                : Block<Quantised<4, false>>(prepared, target, end);
    case Format::kQ8:
      return matrix.half_scales ? Block<Quantised<8, true>>(prepared, target, end)
                                : Block<Quantised<8, false>>(prepared, target, end);
    case Format::kF32:
      return Block<Dense<Format::kF32>>(prepared, target, end);
    case Format::kF16:
      return Block<Dense<Format::kF16>>(prepared, target, end);
    case Format::kBF16:
      return Block<Dense<Format::kBF16>>(prepared, target, end);
  }
}

// x before the product, 8 inputs at `k`.
TF_INLINE __m256 Before(const Around& around, const float* x, size_t inputs, size_t k) {
  const __m256 value = _mm256_loadu_ps(x + k);
  if (!around.gated) return value;
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = Exp(_mm256_sub_ps(_mm256_setzero_ps(), value));
  const __m256 silu = _mm256_div_ps(value, _mm256_add_ps(one, e));
  return _mm256_mul_ps(silu, _mm256_loadu_ps(x + inputs + k));
}

TF_AVX2 void PrepareAvx2(const Matrix& matrix, const Around& around, const float* x, float* ready,
                         float* sums) {
  const size_t inputs = matrix.inputs;
  if (inputs % 8) return kMatMulPortable.prepare(matrix, around, x, ready, sums);
  __m256 squares = _mm256_setzero_ps();
  for (size_t k = 0; k < inputs; k += 8) {
    const __m256 value = Before(around, x, inputs, k);
    if (around.norm) squares = _mm256_fmadd_ps(value, value, squares);
    _mm256_storeu_ps(ready + k, value);
  }
  if (around.norm) {
    const float mean = Sum(squares) / static_cast<float>(inputs);
    const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(mean + around.epsilon));
    for (size_t k = 0; k < inputs; k += 8) {
      const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(ready + k), factor);
      _mm256_storeu_ps(ready + k, _mm256_mul_ps(value, _mm256_loadu_ps(around.norm + k)));
    }
  }
  if (!sums) return;
  // 16^-i or 256^-i for code i of a word, 1 for the last (see Unpack).
  const __m256 power =
      matrix.format == Format::kQ4
          ? _mm256_setr_ps(1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1)
          : _mm256_setr_ps(1, 0x1p-8f, 0x1p-16f, 1, 1, 0x1p-8f, 0x1p-16f, 1);
  for (size_t g = 0; g < matrix.groups(); ++g) {
    __m256 sum = _mm256_setzero_ps();
    for (size_t k = g * matrix.group; k < (g + 1) * matrix.group; k += 8) {
      const __m256 value = _mm256_loadu_ps(ready + k);
      sum = _mm256_add_ps(sum, value);
      _mm256_storeu_ps(ready + k, _mm256_mul_ps(value, power));
    }
    sums[g] = Sum(sum);
  }
}

}  // namespace

const MatMulKernels kMatMulAvx2 = {PrepareAvx2, BlockAvx2};

}  // namespace tensorfold

#endif
