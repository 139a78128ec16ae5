// One page of a unit's queries, as the kernels for AVX2 and AVX-512 share it.
//
// A page's keys lie with their 64 positions side by side and its values with their dimensions side
// by side, so neither product needs a sum across a vector. Up to 4 queries that see the same
// positions share what is read of the page. Bound by memory for one row, else by multiply-adds.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "avx2.h"

namespace tensorfold {

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

// Turns one query's scores into weights, 0 outside [begin, end); its peak and total.
TF_AVX2 inline void WeightsOf(const Tile& tile, int i) {
  const int64_t begin = tile.begin, end = tile.end;
  float* const partial = tile.partials + i * tile.partial_size;
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

// What the partials of a page and of those before it are scaled by, a few queries side by side.
constexpr size_t kMergedAtOnce = 8;
struct Merged {
  // Of `count` queries whose partials are `size` apart.
  TF_INLINE void Measure(size_t count, size_t size, const float* page, const float* before) {
    alignas(32) float old[kMergedAtOnce] = {}, now[kMergedAtOnce] = {};
    for (size_t i = 0; i < count; ++i) {
      old[i] = before[i * size];
      now[i] = page[i * size];
    }
    const __m256 olds = _mm256_load_ps(old), news = _mm256_load_ps(now);
    const __m256 peaks = _mm256_max_ps(olds, news);
    _mm256_store_ps(peak, peaks);
    _mm256_store_ps(kept, Exp(_mm256_sub_ps(olds, peaks)));
    _mm256_store_ps(added, Exp(_mm256_sub_ps(news, peaks)));
  }

  // The peak and the total of query i.
  TF_INLINE void Apply(size_t i, const float* page, float* before) const {
    before[0] = peak[i];
    before[1] = std::fma(page[1], added[i], before[1] * kept[i]);
  }

  alignas(32) float peak[kMergedAtOnce], kept[kMergedAtOnce], added[kMergedAtOnce];
};

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

template <class Kernel>
TF_AVX2 void Scores(const Tile& tile, size_t queries, const float* k_page) {
  queries == 1   ? Kernel::template Scores<1>(tile, k_page)
  : queries == 2 ? Kernel::template Scores<2>(tile, k_page)
  : queries == 3 ? Kernel::template Scores<3>(tile, k_page)
                 : Kernel::template Scores<4>(tile, k_page);
}

template <class Kernel>
TF_AVX2 void Mix(const Tile& tile, size_t queries, const float* v_page) {
  queries == 1   ? Kernel::template Mix<1>(tile, v_page)
  : queries == 2 ? Kernel::template Mix<2>(tile, v_page)
  : queries == 3 ? Kernel::template Mix<3>(tile, v_page)
                 : Kernel::template Mix<4>(tile, v_page);
}

// A kernel's Scores<queries>(tile, k_page) writes the scores of the positions that are seen, and of
// some beside them, to the tile's weights; its Weights(tile, i) turns those of query i into weights;
// its Mix<queries>(tile, v_page) adds up the values. All
// keys before all values: one of them fits the first-level cache, both do not.
template <class Kernel>
TF_AVX2 void Page(const Attention& a, const Unit& unit, int64_t page, float* partials) {
  const size_t at = a.page_at(unit.first_row, page, unit.kv_head);
  const float* k_page = a.k_pages + at;
  const float* v_page = a.v_pages + at;
  Tiles(a, unit, page, partials, [k_page](const Tile& tile, size_t count) {
    Scores<Kernel>(tile, count, k_page);
  });
  Tiles(a, unit, page, partials, [v_page](const Tile& tile, size_t count) {
    for (size_t i = 0; i < count; ++i) Kernel::Weights(tile, static_cast<int>(i));
    Mix<Kernel>(tile, count, v_page);
  });
}

}  // namespace tensorfold
