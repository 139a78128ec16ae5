// Rows of int8 times codes, by AVX-512's products of four bytes. What fills no whole panel is left
// to AVX2, whose bits are the same.
#if defined(__x86_64__)

#include <cmath>
#include <vector>

#include "matmul_avx512.h"

#define TF_VNNI __attribute__((target("avx512f,avx512vnni,avx2,fma,f16c")))
#define TF_INLINE_VNNI TF_VNNI inline __attribute__((always_inline))

namespace tensorfold {
namespace {

// sum += codes * word, four bytes each. (The intrinsic would have GCC copy every sum.)
TF_INLINE_VNNI void AddProducts(__m512i& sum, __m512i codes, __m512i word) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(word));
}

// sum += the products of 4 codes of each output with the words of a block of rows.
template <int kRows>
TF_INLINE_VNNI void Accumulate(const __m512i (&codes)[kVectors], const int32_t* words,
                               __m512i (&sum)[kRows][kVectors]) {
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512i word = _mm512_set1_epi32(words[r]);
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) AddProducts(sum[r][v], codes[v], word);
  }
}

template <int kBits, int kRows, int j = 0>
TF_INLINE_VNNI void AddBundle(const unsigned char* at, const int32_t* row_words,
                              __m512i (&sum)[kRows][kVectors]) {
  if constexpr (j < Bundle<kBits>::kSpread) {
    __m512i codes[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) codes[v] = SpreadWide<kBits, j>(at + 64 * v);
    Accumulate(codes, row_words + j * kRows, sum);
    AddBundle<kBits, kRows, j + 1>(at, row_words, sum);
  }
}

// A word of 4-bit codes is two words of bytes.
template <int kRows>
TF_INLINE_VNNI void AddWord(const unsigned char* at, const int32_t* row_words,
                            __m512i (&sum)[kRows][kVectors]) {
  const __m512i low = _mm512_set1_epi32(0x0f0f0f0f);
  __m512i now[kVectors], codes[kVectors];
  TF_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    now[v] = _mm512_loadu_si512(at + 64 * v);
    _mm_prefetch(at + 64 * v + kAhead, _MM_HINT_T0);
    codes[v] = _mm512_and_si512(now[v], low);
  }
  Accumulate(codes, row_words, sum);
  TF_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    codes[v] = _mm512_and_si512(_mm512_srli_epi32(now[v], 4), low);
  }
  Accumulate(codes, row_words + kRows, sum);
}

// The products of a block of inputs.
template <int kBits, int kBlock, int kRows>
TF_INLINE_VNNI void Block(const unsigned char* at, const int32_t* row_words,
                          __m512i (&sum)[kRows][kVectors]) {
  constexpr int kCodes = kBits == 4 ? 8 : Bundle<kBits>::kCodes;
  TF_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) {
    sum[i / kVectors][i % kVectors] = _mm512_setzero_si512();
  }
  TF_UNROLL
  for (int k = 0; k < kBlock; k += kCodes, at += kCodes * kBits / 8 * kWidth) {
    if constexpr (kBits == 4) {
      AddWord(at, row_words + k / 4 * kRows, sum);
    } else {
      PrefetchLines<Bundle<kBits>::kWords * kVectors>(at);
      AddBundle<kBits>(at, row_words + k / 4 * kRows, sum);
    }
  }
}

template <int kBits, int kBlock, int kRows>
TF_VNNI __attribute__((noinline)) void Rows(const Panel& panel, const Around& around,
                                            const PreparedInt8& prepared, size_t row, float* y) {
  const Matrix& matrix = panel.matrix;
  const int32_t* row_words = prepared.codes + row * (matrix.inputs / 4);
  const float* scales = prepared.scales + row * (matrix.inputs / kBlock);
  const float* sums = prepared.sums + row * matrix.groups();
  const size_t group_bytes = kPanelTiles * matrix.group_bytes();
  const unsigned char* group = panel.data + kPanelTiles * matrix.head_bytes();
  __m512 total[kRows][kVectors];
  TF_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) {
    total[i / kVectors][i % kVectors] = _mm512_setzero_ps();
  }
  for (size_t g = 0; g < matrix.groups(); ++g, group += group_bytes, sums += kRows) {
    const WideScales group_scales(panel, g);
    const unsigned char* at = group;
    for (size_t k = 0; k < matrix.group; k += kBlock, at += kBlock * kBits / 8 * kWidth) {
      __m512i sum[kRows][kVectors];
      Block<kBits, kBlock>(at, row_words, sum);
      row_words += kBlock / 4 * kRows;
      TF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m512 s = group_scales.Scale(v);
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const __m512 scaled =
              _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][v]), _mm512_set1_ps(scales[r]));
          total[r][v] = _mm512_fmadd_ps(scaled, s, total[r][v]);
        }
      }
      scales += kRows;
    }
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const __m512 o = group_scales.Offset(v);
      TF_UNROLL
      for (int r = 0; r < kRows; ++r) {
        total[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(sums[r]), o, total[r][v]);
      }
    }
  }
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) Finish(panel, around, row + r, total[r], y);
}

template <int kBits, int kBlock>
TF_VNNI void AllRows(const Panel& panel, const Around& around, const PreparedInt8& prepared,
                     float* y) {
  for (size_t row = 0, block; row < prepared.rows; row += block) {
    block = BlockRows(prepared.rows - row);
    if (block == kRowBlock) {
      Rows<kBits, kBlock, kRowBlock>(panel, around, prepared, row, y);
    } else if (block == 2) {
      Rows<kBits, kBlock, 2>(panel, around, prepared, row, y);
    } else {
      Rows<kBits, kBlock, 1>(panel, around, prepared, row, y);
    }
  }
}

// Blocks are whole bundles.
template <int kBits>
TF_VNNI void AnyBlock(const Panel& panel, const Around& around, const PreparedInt8& prepared,
                      float* y) {
  const size_t block = panel.matrix.block();
  if (block == 32) return AllRows<kBits, 32>(panel, around, prepared, y);
  if constexpr (kBits != 5) {
    if (block == 16) return AllRows<kBits, 16>(panel, around, prepared, y);
  }
  if constexpr (kBits == 4 || kBits == 8) {
    if (block == 24) return AllRows<kBits, 24>(panel, around, prepared, y);
    return AllRows<kBits, 8>(panel, around, prepared, y);
  }
}

template <int kBits, int j = 0>
TF_INLINE_VNNI void SpreadBundle(const unsigned char* at, unsigned char* to) {
  if constexpr (j < Bundle<kBits>::kSpread) {
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_si512(to + (j * kVectors + v) * 64, SpreadWide<kBits, j>(at + 64 * v));
    }
    SpreadBundle<kBits, j + 1>(at, to);
  }
}

// From here on bundles are spread out once for all rows.
constexpr size_t kManyRows = 16;

// A panel of bundles as one of 8-bit codes and float scales, in memory of this thread.
template <int kBits>
struct SpreadPanel {
  TF_VNNI explicit SpreadPanel(const Panel& panel) : matrix(panel.matrix), output(panel.output) {
    matrix.format = Format::kQ8;
    matrix.scales = Scales::kFloat;
    matrix.zero = 0;
    thread_local std::vector<unsigned char> memory;
    memory.resize(kPanelTiles * matrix.tile_bytes());
    data = memory.data();
    unsigned char* to = memory.data();
    const size_t group_bytes = kPanelTiles * panel.matrix.group_bytes();
    const unsigned char* group = panel.data + kPanelTiles * panel.matrix.head_bytes();
    for (size_t g = 0; g < matrix.groups(); ++g, group += group_bytes) {
      const unsigned char* at = group;
      for (size_t k = 0; k < matrix.group; k += Bundle<kBits>::kCodes) {
        SpreadBundle<kBits>(at, to);
        at += Bundle<kBits>::kWords * kWidth * 4;
        to += Bundle<kBits>::kCodes * kWidth;
      }
      const WideScales scales(panel, g);
      for (int v = 0; v < kVectors; ++v, to += 64) _mm512_storeu_ps(to, scales.Scale(v));
      for (int v = 0; v < kVectors; ++v, to += 64) _mm512_storeu_ps(to, scales.Offset(v));
    }
  }

  Panel panel() const { return {matrix, data, output}; }

  Matrix matrix;
  const unsigned char* data;
  size_t output;
};

template <int kBits>
TF_VNNI void Bundles(const Panel& panel, const Around& around, const PreparedInt8& prepared,
                     float* y) {
  if (prepared.rows < kManyRows) return AnyBlock<kBits>(panel, around, prepared, y);
  const SpreadPanel<kBits> spread(panel);
  AnyBlock<8>(spread.panel(), around, prepared, y);
}

TF_VNNI void PanelVnni(const Matrix& matrix, const Around& around, const PreparedInt8& prepared,
                       size_t panel, float* y) {
  if (matrix.panel_tiles(panel) < kPanelTiles) {
    return kMatMulInt8Avx2.panel(matrix, around, prepared, panel, y);
  }
  const Panel whole{matrix, matrix.panel(panel), panel * kWidth};
  switch (matrix.bits()) {
    case 4:
      return AnyBlock<4>(whole, around, prepared, y);
    case 5:
      return Bundles<5>(whole, around, prepared, y);
    case 6:
      return Bundles<6>(whole, around, prepared, y);
    default:
      return AnyBlock<8>(whole, around, prepared, y);
  }
}

// x before the product, 16 inputs at `k`.
TF_INLINE_VNNI __m512 Before(const Around& around, const float* x, size_t inputs, size_t k) {
  const __m512 value = _mm512_loadu_ps(x + k);
  if (around.gate == Gate::kNone) return value;
  __m512 power = value;
  if (around.gate == Gate::kGelu) {
    const __m512 square = _mm512_mul_ps(value, value);
    power = _mm512_mul_ps(
        value, _mm512_fmadd_ps(square, _mm512_set1_ps(kGeluCubed), _mm512_set1_ps(kGelu)));
  }
  const __m512 e = Exp(_mm512_sub_ps(_mm512_setzero_ps(), power));
  const __m512 gate = _mm512_div_ps(value, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
  return _mm512_mul_ps(gate, _mm512_loadu_ps(x + inputs + k));
}

// As ReadyRow. Squares add up in the order of 8 lanes.
TF_VNNI void ReadyWide(const Matrix& matrix, const Around& around, const float* x, float* ready) {
  const size_t inputs = matrix.inputs;
  __m256 squares = _mm256_setzero_ps();
  for (size_t k = 0; k < inputs; k += kWide512) {
    const __m512 value = Before(around, x, inputs, k);
    _mm512_storeu_ps(ready + k, value);
    if (!around.norm) continue;
    squares = _mm256_fmadd_ps(Low(value), Low(value), squares);
    squares = _mm256_fmadd_ps(High(value), High(value), squares);
  }
  if (!around.norm) return;
  const float mean = Sum(squares) / static_cast<float>(inputs);
  const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(mean + around.epsilon));
  for (size_t k = 0; k < inputs; k += kWide512) {
    const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(ready + k), factor);
    _mm512_storeu_ps(ready + k, _mm512_mul_ps(value, _mm512_loadu_ps(around.norm + k)));
  }
}

// 16 inputs as codes.
TF_INLINE_VNNI __m512i Round(const float* x, __m512 inverse) {
  const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x), inverse);
  const __mmask16 number = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
  return _mm512_maskz_cvtps_epi32(number, value);
}

// One row as bytes in the order of their words. Blocks are of kBlock inputs, 16 or 32.
template <int kBlock>
TF_VNNI void RoundRow(const Matrix& matrix, const float* x, size_t stride, int8_t* bytes,
                      float* scales, float* sums) {
  const __m128i order = matrix.format == Format::kQ4
                            ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                            : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
  for (size_t g = 0; g < matrix.groups(); ++g, sums += stride) {
    __m128 group_sum = _mm_setzero_ps();
    for (size_t k = 0; k < matrix.group; k += kBlock, x += kBlock, scales += stride) {
      __m512i size = _mm512_setzero_si512();
      TF_UNROLL
      for (int i = 0; i < kBlock; i += 16) {
        size = _mm512_max_epi32(size, _mm512_and_si512(_mm512_loadu_si512(x + i), no_sign));
      }
      const int32_t largest = _mm512_reduce_max_epi32(size);
      const float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest)));
      const __m512 inverse = _mm512_set1_ps(most < kLeastInt8 ? 0.0f : 127.0f / most);
      __m512i sum = _mm512_setzero_si512();
      TF_UNROLL
      for (int i = 0; i < kBlock; i += 16, bytes += 16) {
        const __m512i codes = Round(x + i, inverse);
        sum = _mm512_add_epi32(sum, codes);
        const __m128i ordered = _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(codes), order);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), ordered);
      }
      scales[0] = most / 127.0f;
      const float total = static_cast<float>(_mm512_reduce_add_epi32(sum));
      group_sum = _mm_fmadd_ss(_mm_set_ss(total), _mm_set_ss(scales[0]), group_sum);
    }
    sums[0] = _mm_cvtss_f32(group_sum);
  }
}

// Words of 4 rows [rows, words] side by side.
TF_VNNI void Interleave(const int32_t* words, size_t count, int32_t* codes) {
  for (size_t w = 0; w < count; w += 4) {
    __m128 row[kRowBlock];
    for (size_t r = 0; r < kRowBlock; ++r) {
      row[r] = _mm_castsi128_ps(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + r * count + w)));
    }
    _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
    for (size_t i = 0; i < 4; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + (w + i) * kRowBlock),
                       _mm_castps_si128(row[i]));
    }
  }
}

TF_VNNI void PrepareVnni(const Matrix& matrix, const Around& around, const float* x, size_t rows,
                         int32_t* codes, float* scales, float* sums) {
  const size_t inputs = matrix.inputs, words = inputs / 4, block = matrix.block();
  if (block % 16 || inputs % kWide512 || block == 24) {
    return kMatMulInt8Avx2.prepare(matrix, around, x, rows, codes, scales, sums);
  }
  const size_t x_row = around.x_row(inputs);
  thread_local Scratch scratch;
  thread_local std::vector<int32_t> memory;
  if (memory.size() < kRowBlock * words) memory.resize(kRowBlock * words);
  float* ready = scratch.At(inputs);
  for (size_t r = 0; r < rows; ++r) {
    ReadyWide(matrix, around, x + r * x_row, ready);
    int8_t* bytes = reinterpret_cast<int8_t*>(rows == 1 ? codes : memory.data() + r * words);
    (block == 32 ? RoundRow<32> : RoundRow<16>)(matrix, ready, rows, bytes, scales + r, sums + r);
  }
  if (rows == kRowBlock) return Interleave(memory.data(), words, codes);
  for (size_t r = 0; r < rows && rows > 1; ++r) {
    for (size_t w = 0; w < words; ++w) codes[w * rows + r] = memory[r * words + w];
  }
}

}  // namespace

const MatMulInt8Kernels kMatMulInt8Vnni = {PrepareVnni, PanelVnni};

}  // namespace tensorfold

#endif
