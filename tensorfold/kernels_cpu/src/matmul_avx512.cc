// The matmul kernels for AVX-512: as those for AVX2, with twice the outputs in a register and twice
// the registers. A sum is of one output, so its bits are those of AVX2. What fills no whole panel
// is left to AVX2. Integers are unpacked where they are multiplied in steps of many rows too, in two
// operations; floats take four, one of them a conversion that is slow on some processors.
#if defined(__x86_64__)

#include <algorithm>

#include "matmul_avx512.h"

namespace tensorfold {
namespace {

// From here on codes of kE4M3 are unpacked once for all rows.
constexpr size_t kManyRows = 16;

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

template <int kRows>
TF_INLINE512 void Clear(__m512 (&sum)[kRows][kVectors]) {
  TF_UNROLL
  for (int i = 0; i < kRows * kVectors; ++i) sum[i / kVectors][i % kVectors] = _mm512_setzero_ps();
}

// Adds the products of a bundle of codes.
template <int kBits, int kRows, int j = 0>
TF_INLINE512 void AddBundle(const unsigned char* at, const float* x,
                            __m512 (&sum)[kRows][kVectors]) {
  if constexpr (j < Bundle<kBits>::kSpread) {
    __m512i words[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) words[v] = SpreadWide<kBits, j>(at + 64 * v);
    Codes<8>(words, x + 4 * j * kRows, sum);
    AddBundle<kBits, kRows, j + 1>(at, x, sum);
  }
}

// Adds the products of a word of 4-bit codes.
template <int kRows>
TF_INLINE512 void AddWord(const unsigned char* at, const float* x,
                          __m512 (&sum)[kRows][kVectors]) {
  __m512i now[kVectors];
  TF_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    now[v] = _mm512_loadu_si512(at + 64 * v);
    _mm_prefetch(at + 64 * v + kAhead, _MM_HINT_T0);
  }
  Codes<4>(now, x, sum);
}

// Adds the products of 8 codes of kE4M3, 4 words of two.
template <int kRows, int i = 0>
TF_INLINE512 void AddFloats(const unsigned char* at, const float* x,
                            __m512 (&sum)[kRows][kVectors]) {
  if constexpr (i < 8) {
    __m512 weight[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const unsigned char* const words = at + i / 2 * kWidth * 2 + 32 * v;
      weight[v] = _mm512_cvtph_ps(
          E4M3ToHalves<i % 2>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words))));
    }
    Accumulate(weight, x + i * kRows, sum);
    AddFloats<kRows, i + 1>(at, x, sum);
  }
}

// What a code is. Add adds the products of a step: so many codes along the inputs.
template <int kBits>
struct Integers {
  static constexpr bool kOffsets = true;
  static constexpr size_t kStepCodes = kBits == 4 ? 8 : Bundle<kBits>::kCodes;
  static constexpr size_t kStepBytes = (kBits == 4 ? 1 : Bundle<kBits>::kWords) * kWidth * 4;

  template <int kRows>
  TF_INLINE512 static void Add(const unsigned char* at, const float* x,
                               __m512 (&sum)[kRows][kVectors]) {
    if constexpr (kBits == 4) {
      AddWord(at, x, sum);
    } else {
      PrefetchLines<Bundle<kBits>::kWords * kVectors>(at);
      AddBundle<kBits>(at, x, sum);
    }
  }
};

struct Floats {
  static constexpr bool kOffsets = false;
  static constexpr size_t kStepCodes = 8, kStepBytes = kStepCodes * kWidth;

  template <int kRows>
  TF_INLINE512 static void Add(const unsigned char* at, const float* x,
                               __m512 (&sum)[kRows][kVectors]) {
    PrefetchLines<kStepBytes / 64>(at);
    AddFloats(at, x, sum);
  }
};

// The two forms of a matrix. Rows gives the totals of a block of rows.
template <class Code>
struct Quantised {
  template <int kRows>
  TF_INLINE512 static void Rows(const Panel& panel, const float* x, const float* sums,
                                __m512 (&total)[kRows][kVectors]) {
    const Matrix& matrix = panel.matrix;
    const size_t group_bytes = kPanelTiles * matrix.group_bytes();
    const unsigned char* group = panel.data + kPanelTiles * matrix.head_bytes();
    Clear(total);
    for (size_t g = 0; g < matrix.groups(); ++g, group += group_bytes, sums += kRows) {
      __m512 sum[kRows][kVectors];
      Clear(sum);
      const unsigned char* at = group;
      for (size_t k = 0; k < matrix.group; k += Code::kStepCodes, at += Code::kStepBytes) {
        Code::Add(at, x, sum);
        x += Code::kStepCodes * kRows;
      }
      const WideScales scales(panel, g);
      TF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const __m512 s = scales.Scale(v), o = Code::kOffsets ? scales.Offset(v) : s;
        TF_UNROLL
        for (int r = 0; r < kRows; ++r) {
          total[r][v] = _mm512_fmadd_ps(sum[r][v], s, total[r][v]);
          if constexpr (Code::kOffsets) {
            total[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(sums[r]), o, total[r][v]);
          }
        }
      }
    }
  }
};

template <Format kFormat>
struct Dense {
  static constexpr size_t kBytes = kFormat == Format::kF32 ? 4 : 2;

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
  TF_INLINE512 static void Rows(const Panel& panel, const float* x, const float*,
                                __m512 (&total)[kRows][kVectors]) {
    const unsigned char* at = panel.data;
    Clear(total);
    for (size_t k = 0; k < panel.matrix.inputs; ++k, at += kWidth * kBytes, x += kRows) {
      __m512 weight[kVectors];
      TF_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        weight[v] = Load(at + v * kWide512 * kBytes);
        _mm_prefetch(at + v * kWide512 * kBytes + kAhead, _MM_HINT_T0);
        KeepInRegister(weight[v]);
      }
      Accumulate(weight, x, total);
    }
  }
};

template <class Form, int kRows>
TF_AVX512 __attribute__((noinline)) void Block(const Panel& panel, const Around& around,
                                               const Prepared& prepared, size_t row, float* y) {
  const Matrix& matrix = panel.matrix;
  __m512 total[kRows][kVectors];
  Form::Rows(panel, prepared.x + row * matrix.inputs, prepared.sums + row * matrix.groups(),
             total);
  TF_UNROLL
  for (int r = 0; r < kRows; ++r) Finish(panel, around, row + r, total[r], y);
}

// Adds what a group's weights [group, kWidth], scaled by s, give 4 rows to their totals.
TF_AVX512 __attribute__((noinline)) void AddGroup(const float* weights, size_t group,
                                                  const __m512 (&s)[kVectors], const float* x,
                                                  float* totals) {
  __m512 sum[kRowBlock][kVectors];
  Clear(sum);
  for (size_t k = 0; k < group; ++k, x += kRowBlock, weights += kWidth) {
    __m512 weight[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      weight[v] = _mm512_load_ps(weights + v * kWide512);
      KeepInRegister(weight[v]);
    }
    Accumulate(weight, x, sum);
  }
  TF_UNROLL
  for (int i = 0; i < static_cast<int>(kRowBlock) * kVectors; ++i) {
    float* const at = totals + i * kWide512;
    const __m512 scaled =
        _mm512_fmadd_ps(sum[i / kVectors][i % kVectors], s[i % kVectors], _mm512_load_ps(at));
    _mm512_store_ps(at, scaled);
  }
}

// What one panel needs.
thread_local Scratch scratch;

// All whole blocks of rows times codes of kE4M3, each group of which is unpacked once; the first row
// that is left.
TF_AVX512 size_t ManyRows(const Panel& panel, const Around& around, const Prepared& prepared,
                          float* y) {
  const Matrix& matrix = panel.matrix;
  const size_t rows = prepared.rows / kRowBlock * kRowBlock, group = matrix.group;
  float* const weights = scratch.At((group + rows) * kWidth);
  float* const totals = weights + group * kWidth;
  std::fill(totals, totals + rows * kWidth, 0.0f);
  const unsigned char* at = panel.data + kPanelTiles * matrix.head_bytes();
  for (size_t g = 0; g < matrix.groups(); ++g, at += kPanelTiles * matrix.group_bytes()) {
    for (size_t i = 0; i < group / 2 * kVectors; ++i) {
      float* const out = weights + i / kVectors * 2 * kWidth + i % kVectors * kWide512;
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32 * i));
      _mm_prefetch(at + 32 * i + kAhead, _MM_HINT_T0);
      _mm512_store_ps(out, _mm512_cvtph_ps(E4M3ToHalves<0>(words)));
      _mm512_store_ps(out + kWidth, _mm512_cvtph_ps(E4M3ToHalves<1>(words)));
    }
    const WideScales scales(panel, g);
    __m512 s[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) s[v] = scales.Scale(v);
    for (size_t row = 0; row < rows; row += kRowBlock) {
      const float* x = prepared.x + row * matrix.inputs + g * group * kRowBlock;
      AddGroup(weights, group, s, x, totals + row * kWidth);
    }
  }
  for (size_t row = 0; row < rows; ++row) {
    __m512 total[kVectors];
    TF_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      total[v] = _mm512_load_ps(totals + row * kWidth + v * kWide512);
    }
    Finish(panel, around, row, total, y);
  }
  return rows;
}

template <class Form>
TF_AVX512 void Rows(const Panel& panel, const Around& around, const Prepared& prepared, float* y,
                    size_t row = 0) {
  for (size_t block; row < prepared.rows; row += block) {
    block = BlockRows(prepared.rows - row);
    if (block == kRowBlock) {
      Block<Form, kRowBlock>(panel, around, prepared, row, y);
    } else if (block == 2) {
      Block<Form, 2>(panel, around, prepared, row, y);
    } else {
      Block<Form, 1>(panel, around, prepared, row, y);
    }
  }
}

TF_AVX512 void PanelAvx512(const Matrix& matrix, const Around& around, const Prepared& prepared,
                           size_t panel, float* y) {
  if (matrix.panel_tiles(panel) < kPanelTiles) {
    return kMatMulAvx2.panel(matrix, around, prepared, panel, y);
  }
  const Panel whole{matrix, matrix.panel(panel), panel * kWidth};
  switch (matrix.format) {
    case Format::kQ4:
      return Rows<Quantised<Integers<4>>>(whole, around, prepared, y);
    case Format::kQ5:
      return Rows<Quantised<Integers<5>>>(whole, around, prepared, y);
    case Format::kQ6:
      return Rows<Quantised<Integers<6>>>(whole, around, prepared, y);
    case Format::kQ8:
      return Rows<Quantised<Integers<8>>>(whole, around, prepared, y);
    case Format::kE4M3:
      return Rows<Quantised<Floats>>(
          whole, around, prepared, y,
          prepared.rows >= kManyRows ? ManyRows(whole, around, prepared, y) : 0);
    case Format::kF32:
      return Rows<Dense<Format::kF32>>(whole, around, prepared, y);
    case Format::kF16:
      return Rows<Dense<Format::kF16>>(whole, around, prepared, y);
    case Format::kBF16:
      return Rows<Dense<Format::kBF16>>(whole, around, prepared, y);
  }
}

}  // namespace

const MatMulKernels kMatMulAvx512 = {kMatMulAvx2.prepare, PanelAvx512};

}  // namespace tensorfold

#endif
