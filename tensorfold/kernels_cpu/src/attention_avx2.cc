// One page of a unit's queries, for AVX2 with FMA.
//
// A page's keys lie with their 64 positions side by side and its values with their dimensions side
// by side, so neither product needs a sum across a vector. Up to 4 queries that see the same
// positions share what is read of the page. Bound by memory for one row, else by multiply-adds.
#if defined(__x86_64__)

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "avx2.h"

namespace tensorfold {
namespace {

// Vectors of positions or dimensions that kQ queries take at a time: sums enough to wait for none.
template <int kQ>
constexpr int kWide = kQ == 1 ? 8 : kQ == 4 ? 2 : 4;

// Queries that see the same positions of a page, and where their partials go.
struct Tile {
  const float* q[4];
  size_t dim;
  int64_t begin, end;
  float* partials;
  size_t partial_size;

  float* weights(int i) const { return partials + i * partial_size + kWeights; }
  float* mix(int i) const { return partials + i * partial_size + kMix; }
};

// sum[q][j] += broadcast(value[q]) * row[j]
template <int kQ, int kV>
TF_INLINE void Accumulate(const float* row, const float* const (&value)[kQ], size_t at,
                          __m256 (&sum)[kQ][kV]) {
  // 3 values, 12 sums and one vector of the row are all 16 registers.
  __m256 each[kQ];
  TF_UNROLL
  for (int i = 0; i < kQ; ++i) {
    each[i] = _mm256_broadcast_ss(value[i] + at);
    KeepInRegister(each[i]);
  }
  TF_UNROLL
  for (int j = 0; j < kV; ++j) {
    __m256 shared = _mm256_loadu_ps(row + 8 * j);
    if constexpr (kQ > 1) KeepInRegister(shared);
    TF_UNROLL
    for (int i = 0; i < kQ; ++i) sum[i][j] = _mm256_fmadd_ps(each[i], shared, sum[i][j]);
  }
}

template <int kQ, int kV>
TF_INLINE void Clear(__m256 (&sum)[kQ][kV]) {
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) sum[i / kV][i % kV] = _mm256_setzero_ps();
}

// Scores of kQ queries against the positions that they see and some beside them.
template <int kQ>
TF_AVX2 void Scores(const Tile& tile, const float* k_page) {
  constexpr int kV = kWide<kQ>;
  const float* q[kQ];
  std::copy_n(tile.q, kQ, q);
  for (int64_t s = tile.begin / (8 * kV) * (8 * kV); s < tile.end; s += 8 * kV) {
    __m256 sum[kQ][kV];
    Clear(sum);
    for (size_t d = 0; d < tile.dim; ++d) Accumulate(k_page + d * kPage + s, q, d, sum);
    TF_UNROLL
    for (int i = 0; i < kQ * kV; ++i) {
      _mm256_storeu_ps(tile.weights(i / kV) + s + 8 * (i % kV), sum[i / kV][i % kV]);
    }
  }
}

// Turns one query's scores into weights, 0 outside [begin, end); its peak and total.
TF_AVX2 void Weights(int64_t begin, int64_t end, float* partial) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i from = _mm256_set1_epi32(static_cast<int>(begin) - 1);
  const __m256i to = _mm256_set1_epi32(static_cast<int>(end));
  const __m256 none = _mm256_set1_ps(-INFINITY);
  float* score = partial + kWeights;
  const int first = static_cast<int>(begin / 8 * 8), last = static_cast<int>(end);
  __m256 highest = none;
  for (int s = first; s < last; s += 8) {
    const __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32(s));
    const __m256i seen = _mm256_and_si256(_mm256_cmpgt_epi32(at, from), _mm256_cmpgt_epi32(to, at));
    const __m256 each =
        _mm256_blendv_ps(none, _mm256_loadu_ps(score + s), _mm256_castsi256_ps(seen));
    _mm256_storeu_ps(score + s, each);
    highest = _mm256_max_ps(highest, each);
  }
  const float peak = Max(highest);
  __m256 sum = _mm256_setzero_ps();
  for (int s = first; s < last; s += 8) {
    const __m256 weight = Exp(_mm256_sub_ps(_mm256_loadu_ps(score + s), _mm256_set1_ps(peak)));
    _mm256_storeu_ps(score + s, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  partial[0] = peak;
  partial[1] = Sum(sum);
}

// The weighted values, kV vectors of dimensions from `first`.
template <int kQ, int kV>
TF_INLINE void MixSome(const Tile& tile, const float* v_page, size_t first) {
  const float* w[kQ];
  for (int i = 0; i < kQ; ++i) w[i] = tile.weights(i);
  __m256 sum[kQ][kV];
  Clear(sum);
  for (int64_t s = tile.begin; s < tile.end; ++s) {
    Accumulate(v_page + s * tile.dim + first, w, s, sum);
  }
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) {
    _mm256_storeu_ps(tile.mix(i / kV) + first + 8 * (i % kV), sum[i / kV][i % kV]);
  }
}

template <int kQ>
TF_AVX2 void Mix(const Tile& tile, const float* v_page) {
  size_t d = 0;
  for (; d + 8 * kWide<kQ> <= tile.dim; d += 8 * kWide<kQ>) {
    MixSome<kQ, kWide<kQ>>(tile, v_page, d);
  }
  for (; d < tile.dim; d += 8) MixSome<kQ, 1>(tile, v_page, d);
}

// Calls body(tile, queries) for every tile of a unit that sees something of the page.
template <class Body>
TF_INLINE void Tiles(const Attention& a, const Unit& unit, int64_t page, float* partials,
                     Body&& body) {
  Tile tile{{}, a.head_dim, 0, 0, nullptr, PartialSize(a)};
  for (size_t row = 0, same; row < unit.rows; row += same) {
    SeenInPage(a, a.position[unit.first_row + row], page, &tile.begin, &tile.end);
    for (same = 1; row + same < unit.rows; ++same) {
      int64_t begin, end;
      SeenInPage(a, a.position[unit.first_row + row + same], page, &begin, &end);
      if (begin != tile.begin || end != tile.end) break;
    }
    if (tile.begin >= tile.end) continue;
    const size_t last = (row + same) * a.group();
    for (size_t i = row * a.group(), count; i < last; i += count) {
      const size_t left = last - i;
      count = left % 3 == 0 || left == 5 ? 3 : std::min<size_t>(left, 4);
      for (size_t j = 0; j < count; ++j) tile.q[j] = a.query(unit, i + j);
      tile.partials = partials + i * tile.partial_size;
      body(tile, count);
    }
  }
}

// All keys before all values: one of them fits the first-level cache, both do not.
TF_AVX2 void PageAvx2(const Attention& a, const Unit& unit, int64_t page, float* partials) {
  const size_t at = a.page_at(unit.first_row, page, unit.kv_head);
  const float* k_page = a.k_pages + at;
  const float* v_page = a.v_pages + at;
  Tiles(a, unit, page, partials, [k_page](const Tile& tile, size_t count) {
    count == 1   ? Scores<1>(tile, k_page)
    : count == 2 ? Scores<2>(tile, k_page)
    : count == 3 ? Scores<3>(tile, k_page)
                 : Scores<4>(tile, k_page);
  });
  Tiles(a, unit, page, partials, [v_page](const Tile& tile, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Weights(tile.begin, tile.end, tile.partials + i * tile.partial_size);
    }
    count == 1   ? Mix<1>(tile, v_page)
    : count == 2 ? Mix<2>(tile, v_page)
    : count == 3 ? Mix<3>(tile, v_page)
                 : Mix<4>(tile, v_page);
  });
}

TF_AVX2 void MergeAvx2(const Attention& a, const float* page, float* before) {
  const float peak = std::max(before[0], page[0]);
  const __m256 kept = Exp(_mm256_set1_ps(before[0] - peak));
  const __m256 added = Exp(_mm256_set1_ps(page[0] - peak));
  before[0] = peak;
  before[1] = std::fma(page[1], _mm256_cvtss_f32(added), before[1] * _mm256_cvtss_f32(kept));
  for (size_t d = kMix; d < kMix + a.head_dim; d += 8) {
    const __m256 old = _mm256_mul_ps(_mm256_loadu_ps(before + d), kept);
    _mm256_storeu_ps(before + d, _mm256_fmadd_ps(_mm256_loadu_ps(page + d), added, old));
  }
}

}  // namespace

const AttendKernels kAttendAvx2 = {PageAvx2, MergeAvx2};

}  // namespace tensorfold

#endif
