// Attention of rows over the pages of their lanes, from the fused projection to the mixed heads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

constexpr size_t kPage = 64;

struct Unit;

// Everything is float and row-major. Null pointers leave a part out.
struct Attention {
  size_t rows, heads, kv_heads, head_dim;  // head_dim a multiple of 8
  size_t pages_per_lane, pages;
  float scale;
  int64_t window;           // 0: none
  float epsilon;            // of the head norms
  const int32_t* lane;      // [rows], -1 for padding
  const int32_t* position;  // [rows]
  const int32_t* table;     // [lanes, pages_per_lane]
  const float* qkv;         // [rows, (heads + 2 kv_heads) * head_dim]
  const float* cos;         // [rows, head_dim / 2]
  const float* sin;         // [rows, head_dim / 2]
  const float* q_norm;      // [head_dim]
  const float* k_norm;      // [head_dim]
  const float* sinks;       // [heads], a score of each head that adds no value
  float* k_pages;           // [pages, kv_heads, head_dim, 64]
  float* v_pages;           // [pages, kv_heads, 64, head_dim]
  float* q;                 // [rows, heads, head_dim], room for the rotated and scaled queries
  float* out;               // [rows, heads, head_dim]

  size_t group() const { return heads / kv_heads; }
  // Where page p of a row's lane begins in k_pages and v_pages, at one key head.
  size_t page_at(size_t row, int64_t page, size_t kv_head) const {
    return (table[lane[row] * pages_per_lane + page] * kv_heads + kv_head) * head_dim * kPage;
  }
  const float* query(const Unit& unit, size_t i) const;
};

// Normalises and rotates queries and keys, writes keys and values to their pages, then attends to
// positions up to each row's own.
//
// For one row and head, a page gives a peak, a total and a mix: a score is summed over head_dim in
// order; the peak is the highest; a weight is e^(score - peak); weights are summed in 8 lanes
// (position modulo 8) that meet in one fixed tree; values are added position after position. Pages
// are merged in order: what came before and what the page gives are each scaled to the higher peak.
// Before the first page is nothing, or a head's sink: a peak of the sink and a total of 1.
void Attend(const Attention&);

// One key head of up to kUnitRows rows of one lane, in order of position, with the query heads that
// share it. Query i is head i % group of row i / group.
constexpr size_t kUnitRows = 8;
struct Unit {
  size_t first_row, rows, kv_head;
};

// What some positions give one query: the peak, the total, from kWeights on room for the weights of
// a page, and from kMix on the mix [head_dim].
constexpr size_t kWeights = 8;
constexpr size_t kMix = kWeights + kPage;
inline size_t PartialSize(const Attention& a) { return kMix + a.head_dim; }

inline const float* Attention::query(const Unit& unit, size_t i) const {
  const size_t row = unit.first_row + i / group(), head = unit.kv_head * group() + i % group();
  return q + (row * heads + head) * head_dim;
}

// Page: what one page gives each query of a unit, [rows * group] partials; those of rows that do
// not see the page are left alone. Merge: adds a page's partials of `queries` to what came before.
struct AttendKernels {
  void (*page)(const Attention&, const Unit&, int64_t page, float* partials);
  void (*merge)(const Attention&, size_t queries, const float* page, float* before);
};

extern const AttendKernels kAttendPortable;
extern const AttendKernels kAttendAvx2;
extern const AttendKernels kAttendAvx512;

// The first page that the row at `position` sees.
inline int64_t FirstPage(const Attention& a, int64_t position) {
  const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  return first / static_cast<int64_t>(kPage);
}

// The positions of page p that the row at `position` sees: [begin, end) within the page.
inline void SeenInPage(const Attention& a, int64_t position, int64_t page, int64_t* begin,
                       int64_t* end) {
  const int64_t size = kPage, base = page * size;
  const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  *begin = first > base ? first - base : 0;
  *end = position - base + 1 < size ? position - base + 1 : size;
}

}  // namespace tensorfold
