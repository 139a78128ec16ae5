// The block kernel for AVX2 with FMA and F16C.
//
// Per 8 weights and row: one multiply-add, and shared by the rows of a block one mask and one
// conversion. Bound by the multiply-adds from 4 rows up, by mask and conversion for one row.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "matmul.h"

#define TF_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TF_INLINE TF_AVX2 inline __attribute__((always_inline))
#if defined(__clang__)
#define TF_UNROLL _Pragma("unroll")
#else
#define TF_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tensorfold {
namespace {

TF_INLINE __m256 LoadHalves(const void* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
}

template <bool kHalf>
TF_INLINE __m256 LoadScales(const void* base, size_t at) {
  if constexpr (kHalf) return LoadHalves(static_cast<const uint16_t*>(base) + at);
  return _mm256_loadu_ps(static_cast<const float*>(base) + at);
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
TF_INLINE void Word(const __m256i* at, size_t stride, const float* x, size_t inputs,
                    __m256 (&sum)[kRows][kTiles]) {
  __m256i words[kTiles];
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) words[t] = _mm256_loadu_si256(at + t * stride);
  // With few rows memory is the bound, and each tile is too short for the hardware to foresee the
  // next: ask for it in time.
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    _mm_prefetch(reinterpret_cast<const char*>(at + (t + kTiles) * stride), _MM_HINT_T0);
  }
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

template <int kRows, int kTiles>
TF_INLINE void Store(const Matrix& matrix, const __m256 (&total)[kRows][kTiles], size_t tile,
                     float* y) {
  for (int t = 0; t < kTiles; ++t) {
    const size_t column = (tile + t) * kTile;
    for (int r = 0; r < kRows; ++r) {
      float* out = y + r * matrix.outputs + column;
      if (column + kTile <= matrix.outputs) {
        _mm256_storeu_ps(out, total[r][t]);
      } else {
        alignas(32) float last[kTile];
        _mm256_store_ps(last, total[r][t]);
        std::copy(last, last + matrix.outputs - column, out);
      }
    }
  }
}

template <int kBits, bool kHalf>
struct Quantised {
  template <int kRows, int kTiles>
  TF_AVX2 static void Run(const Matrix& matrix, const float* x, const float* sums, size_t tile,
                          float* y) {
    constexpr size_t kPerWord = 32 / kBits;
    const size_t words = matrix.inputs / kPerWord, groups = matrix.groups();
    const __m256i* codes = static_cast<const __m256i*>(matrix.codes) + tile * words;
    const size_t words_per_group = matrix.group / kPerWord;
    __m256 total[kRows][kTiles];
    Clear(total);
    for (size_t g = 0; g < groups; ++g) {
      __m256 sum[kRows][kTiles];
      Clear(sum);
      for (size_t w = g * words_per_group; w < (g + 1) * words_per_group; ++w) {
        Word<kBits, kRows, kTiles>(codes + w, words, x + w * kPerWord, matrix.inputs, sum);
      }
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const size_t at = ((tile + t) * groups + g) * kTile;
        const __m256 scale = LoadScales<kHalf>(matrix.scale, at);
        const __m256 offset = LoadScales<kHalf>(matrix.offset, at);
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          total[r][t] = _mm256_fmadd_ps(sum[r][t], scale, total[r][t]);
          const __m256 of_x = _mm256_broadcast_ss(sums + r * groups + g);
          total[r][t] = _mm256_fmadd_ps(of_x, offset, total[r][t]);
        }
      }
    }
    Store<kRows, kTiles>(matrix, total, tile, y);
  }
};

template <Format kFormat>
struct Dense {
  template <int kRows, int kTiles>
  TF_AVX2 static void Run(const Matrix& matrix, const float* x, const float*, size_t tile,
                          float* y) {
    __m256 total[kRows][kTiles];
    Clear(total);
    for (size_t k = 0; k < matrix.inputs; ++k) {
      __m256 weight[kTiles];
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        weight[t] = Load(matrix.codes, ((tile + t) * matrix.inputs + k) * kTile);
      }
      TF_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m256 value = _mm256_broadcast_ss(x + r * matrix.inputs + k);
        TF_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          total[r][t] = _mm256_fmadd_ps(weight[t], value, total[r][t]);
        }
      }
    }
    Store<kRows, kTiles>(matrix, total, tile, y);
  }

  TF_INLINE static __m256 Load(const void* base, size_t at) {
    if constexpr (kFormat == Format::kF32) {
      return _mm256_loadu_ps(static_cast<const float*>(base) + at);
    } else if constexpr (kFormat == Format::kF16) {
      return LoadHalves(static_cast<const uint16_t*>(base) + at);
    } else {
      const auto* bits = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(base) + at);
      const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(bits));
      return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
  }
};

// All tiles for kRows rows, kTiles at a time and then one by one.
template <class Kernel, int kRows, int kTiles>
TF_AVX2 void Rows(const Matrix& matrix, const Prepared& prepared, size_t row, size_t first,
                  size_t count, float* y) {
  const float* x = prepared.x + row * matrix.inputs;
  const float* sums = prepared.sums ? prepared.sums + row * matrix.groups() : nullptr;
  y += row * matrix.outputs;
  size_t tile = first;
  for (; tile + kTiles <= first + count; tile += kTiles) {
    Kernel::template Run<kRows, kTiles>(matrix, x, sums, tile, y);
  }
  for (; tile < first + count; ++tile) Kernel::template Run<kRows, 1>(matrix, x, sums, tile, y);
}

template <class Kernel>
TF_AVX2 void Block(const Matrix& matrix, const Prepared& prepared, size_t first, size_t count,
                   float* y) {
  // Three tiles stay in the first-level cache while all rows pass over them.
  for (size_t tile = first; tile < first + count && prepared.rows >= 4; tile += 3) {
    const size_t some = std::min<size_t>(3, first + count - tile);
    for (size_t row = 0; row + 4 <= prepared.rows; row += 4) {
      Rows<Kernel, 4, 3>(matrix, prepared, row, tile, some, y);
    }
  }
  const size_t row = prepared.rows / 4 * 4;
  switch (prepared.rows % 4) {
    case 1:
      return Rows<Kernel, 1, 4>(matrix, prepared, row, first, count, y);
    case 2:
      return Rows<Kernel, 2, 3>(matrix, prepared, row, first, count, y);
    case 3:
      return Rows<Kernel, 3, 3>(matrix, prepared, row, first, count, y);
    default:
      return;
  }
}

template <int kBits>
TF_AVX2 void BlockQuantised(const Matrix& matrix, const Prepared& prepared, size_t first,
                            size_t count, float* y) {
  if (matrix.half_scales) {
    Block<Quantised<kBits, true>>(matrix, prepared, first, count, y);
  } else {
    Block<Quantised<kBits, false>>(matrix, prepared, first, count, y);
  }
}

}  // namespace

void BlockAvx2(const Matrix& matrix, const Prepared& prepared, size_t first, size_t count,
               float* y) {
  switch (matrix.format) {
    case Format::kQ4:
      return BlockQuantised<4>(matrix, prepared, first, count, y);
    case Format::kQ8:
      return BlockQuantised<8>(matrix, prepared, first, count, y);
    case Format::kF32:
      return Block<Dense<Format::kF32>>(matrix, prepared, first, count, y);
    case Format::kF16:
      return Block<Dense<Format::kF16>>(matrix, prepared, first, count, y);
    case Format::kBF16:
      return Block<Dense<Format::kBF16>>(matrix, prepared, first, count, y);
  }
}

}  // namespace tensorfold

#endif
