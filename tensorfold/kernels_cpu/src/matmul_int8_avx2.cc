// Rows of int8 times codes, by AVX2's products of two bytes. They add up in 16 bits: of 4-bit codes
// no more than 32 x 15 x 127 for a block, and 8-bit codes are taken as two of 4 bits.
#if defined(__x86_64__)

#include "matmul_avx2.h"

namespace tensorfold {
namespace {

// The 8 lanes' maximum.
TF_INLINE int32_t MaxInt(__m256i x) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

// The 8 lanes' sum.
TF_INLINE int32_t SumInt(__m256i x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// The largest size in a block. Without their signs floats are ordered as integers, NaN on top.
TF_INLINE float Most(const float* x, size_t block) {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256i most = _mm256_setzero_si256();
  for (size_t k = 0; k < block; k += 8) {
    const __m256 size = _mm256_and_ps(_mm256_loadu_ps(x + k), no_sign);
    most = _mm256_max_epi32(most, _mm256_castps_si256(size));
  }
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(MaxInt(most))));
}

// One row: words, scales and sums `stride` apart.
TF_AVX2 void PrepareRow(const Matrix& matrix, const float* x, size_t stride, int32_t* words,
                        float* scales, float* sums) {
  const size_t block = matrix.block(), blocks = matrix.group / block;
  const __m128i order = matrix.format == Format::kQ4
                            ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7)
                            : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  for (size_t g = 0; g < matrix.groups(); ++g, sums += stride) {
    __m128 group_sum = _mm_setzero_ps();
    for (size_t b = 0; b < blocks; ++b, x += block, scales += stride) {
      const float most = Most(x, block), scale = most / 127.0f;
      const __m256 inverse = _mm256_set1_ps(most < kLeastInt8 ? 0.0f : 127.0f / most);
      __m256i sum = _mm256_setzero_si256();
      for (size_t k = 0; k < block; k += 8, words += 2 * stride) {
        const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + k), inverse);
        const __m256 number = _mm256_cmp_ps(value, value, _CMP_ORD_Q);
        const __m256i codes =
            _mm256_and_si256(_mm256_cvtps_epi32(value), _mm256_castps_si256(number));
        sum = _mm256_add_epi32(sum, codes);
        __m128i bytes = _mm_packs_epi32(_mm256_castsi256_si128(codes),
                                        _mm256_extracti128_si256(codes, 1));
        bytes = _mm_shuffle_epi8(_mm_packs_epi16(bytes, bytes), order);
        words[0] = _mm_cvtsi128_si32(bytes);
        words[stride] = _mm_extract_epi32(bytes, 1);
      }
      scales[0] = scale;
      group_sum = _mm_fmadd_ss(_mm_set_ss(static_cast<float>(SumInt(sum))), _mm_set_ss(scale),
                               group_sum);
    }
    sums[0] = _mm_cvtss_f32(group_sum);
  }
}

TF_AVX2 void Prepare(const Matrix& matrix, const Around& around, const float* x, size_t rows,
                     int32_t* codes, float* scales, float* sums) {
  const size_t x_row = around.x_row(matrix.inputs);
  thread_local Scratch scratch;
  float* ready = scratch.At(matrix.inputs);
  for (size_t r = 0; r < rows; ++r) {
    ReadyRow(kMatMulAvx2, matrix, around, x + r * x_row, ready);
    PrepareRow(matrix, ready, rows, codes + r, scales + r, sums + r);
  }
}

// Sums of products in 16 bits, two of each 32-bit lane's: of low and of high halves of 8-bit codes,
// or of all 4-bit codes.
template <int kBits, int kRows, int kTiles>
struct Sums {
  static constexpr int kParts = kBits == 4 ? 1 : 2;

  TF_INLINE void Clear() {
    TF_UNROLL
    for (int i = 0; i < kParts * kRows * kTiles; ++i) {
      of[i / (kRows * kTiles)][i / kTiles % kRows][i % kTiles] = _mm256_setzero_si256();
    }
  }

  TF_INLINE void Add(int part, int r, int t, __m256i codes, int32_t word) {
    of[part][r][t] =
        _mm256_add_epi16(of[part][r][t], _mm256_maddubs_epi16(codes, _mm256_set1_epi32(word)));
  }

  // The sum of a row and a tile.
  TF_INLINE __m256 Total(int r, int t) const {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i total = _mm256_madd_epi16(of[0][r][t], ones);
    if constexpr (kParts == 2) {
      const __m256i high = _mm256_madd_epi16(of[1][r][t], ones);
      total = _mm256_add_epi32(total, _mm256_slli_epi32(high, 4));
    }
    return _mm256_cvtepi32_ps(total);
  }

  __m256i of[kParts][kRows][kTiles];
};

// Adds the products of word j of a bundle, and of those after it.
template <int kBits, int kRows, int kTiles, int j = 0>
TF_INLINE void AddBundle(const unsigned char* at, size_t stride, const int32_t* row_words,
                         Sums<kBits, kRows, kTiles>& sums) {
  if constexpr (j < Bundle<kBits>::kSpread) {
    const __m256i low = _mm256_set1_epi32(0x0f0f0f0f);
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const unsigned char* const tile = at + t * sizeof(__m256i);
      const __m256i codes = SpreadWord<kBits, j>(tile, stride);
      if constexpr (j < Bundle<kBits>::kWords) {
        _mm_prefetch(tile + j * stride + kAhead, _MM_HINT_T0);
      }
      const __m256i first = _mm256_and_si256(codes, low);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi32(codes, 4), low);
      TF_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums.Add(0, r, t, first, row_words[j * kRows + r]);
        sums.Add(1, r, t, second, row_words[j * kRows + r]);
      }
    }
    AddBundle<kBits, kRows, kTiles, j + 1>(at, stride, row_words, sums);
  }
}

// Adds the products of a word of 4-bit codes, which is two words of bytes.
template <int kRows, int kTiles>
TF_INLINE void AddWord(const unsigned char* at, const int32_t* row_words,
                       Sums<4, kRows, kTiles>& sums) {
  const __m256i low = _mm256_set1_epi32(0x0f0f0f0f);
  TF_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    const __m256i now = LoadWords(at + t * sizeof(__m256i));
    _mm_prefetch(at + t * sizeof(__m256i) + kAhead, _MM_HINT_T0);
    const __m256i first = _mm256_and_si256(now, low);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi32(now, 4), low);
    TF_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums.Add(0, r, t, first, row_words[r]);
      sums.Add(0, r, t, second, row_words[kRows + r]);
    }
  }
}

// The products of a block of inputs.
template <int kBits, int kRows, int kTiles>
TF_INLINE void Block(const unsigned char* at, size_t stride, size_t block,
                     const int32_t* row_words, Sums<kBits, kRows, kTiles>& sums) {
  constexpr int kCodes = kBits == 4 ? 8 : Bundle<kBits>::kCodes;
  sums.Clear();
  for (size_t k = 0; k < block; k += kCodes, at += kCodes * kBits / 32 * stride) {
    if constexpr (kBits == 4) {
      AddWord(at, row_words, sums);
    } else {
      AddBundle(at, stride, row_words, sums);
    }
    row_words += kCodes / 4 * kRows;
  }
}

template <int kBits, int kRows, int kTiles>
TF_AVX2 __attribute__((noinline)) void Rows(const Part& part, const Around& around,
                                            const PreparedInt8& prepared, size_t row, float* y) {
  const Matrix& matrix = part.matrix;
  const size_t block = matrix.block(), stride = part.stride();
  const int32_t* row_words = prepared.codes + row * (matrix.inputs / 4);
  const float* scales = prepared.scales + row * (matrix.inputs / block);
  const float* row_sums = prepared.sums + row * matrix.groups();
  alignas(32) float totals[kRows][kTiles * kTile] = {};
  for (size_t g = 0; g < matrix.groups(); ++g, row_sums += kRows) {
    const GroupScales group_scales(part, g);
    const unsigned char* at = part.codes(g);
    for (size_t k = 0; k < matrix.group; k += block, scales += kRows) {
      Sums<kBits, kRows, kTiles> sums;
      Block(at, stride, block, row_words, sums);
      at += block * kBits / 32 * stride;
      row_words += block / 4 * kRows;
      TF_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const __m256 s = group_scales.Scale(t);
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float* const to = totals[r] + t * kTile;
          const __m256 scaled = _mm256_mul_ps(sums.Total(r, t), _mm256_set1_ps(scales[r]));
          _mm256_store_ps(to, _mm256_fmadd_ps(scaled, s, _mm256_load_ps(to)));
        }
      }
    }
    TF_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const __m256 o = group_scales.Offset(t);
      TF_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float* const to = totals[r] + t * kTile;
        const __m256 sum = _mm256_set1_ps(row_sums[r]);
        _mm256_store_ps(to, _mm256_fmadd_ps(sum, o, _mm256_load_ps(to)));
      }
    }
  }
  Finish(part, around, row, kRows, kTiles, totals[0], y);
}

template <int kBits, int kTiles>
TF_AVX2 void AllRows(const Part& part, const Around& around, const PreparedInt8& prepared,
                     float* y) {
  for (size_t row = 0, block; row < prepared.rows; row += block) {
    block = BlockRows(prepared.rows - row);
    if (block == kRowBlock) {
      Rows<kBits, kRowBlock, kTiles>(part, around, prepared, row, y);
    } else if (block == 2) {
      Rows<kBits, 2, kTiles>(part, around, prepared, row, y);
    } else {
      Rows<kBits, 1, kTiles>(part, around, prepared, row, y);
    }
  }
}

template <int kBits>
TF_AVX2 void Panel(Part part, const Around& around, const PreparedInt8& prepared, float* y) {
  // Tiles that leave registers for codes beside the sums.
  constexpr int kTiles = kBits == 4 ? 2 : 1;
  if (prepared.rows == 1 && part.panel_tiles == kPanelTiles) {
    return Rows<kBits, 1, kPanelTiles>(part, around, prepared, 0, y);
  }
  for (; part.tile + kTiles <= part.panel_tiles; part.tile += kTiles, part.output += kTiles * kTile) {
    AllRows<kBits, kTiles>(part, around, prepared, y);
  }
  for (; part.tile < part.panel_tiles; ++part.tile, part.output += kTile) {
    AllRows<kBits, 1>(part, around, prepared, y);
  }
}

TF_AVX2 void PanelAvx2(const Matrix& matrix, const Around& around, const PreparedInt8& prepared,
                       size_t panel, float* y) {
  const Part part{matrix, matrix.panel(panel), 0, matrix.panel_tiles(panel),
                  panel * kPanelTiles * kTile};
  switch (matrix.bits()) {
    case 4:
      return Panel<4>(part, around, prepared, y);
    case 5:
      return Panel<5>(part, around, prepared, y);
    case 6:
      return Panel<6>(part, around, prepared, y);
    default:
      return Panel<8>(part, around, prepared, y);
  }
}

}  // namespace

const MatMulInt8Kernels kMatMulInt8Avx2 = {Prepare, PanelAvx2};

}  // namespace tensorfold

#endif
