// Attention of rows over the pages of their lanes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

constexpr size_t kPage = 64;

// Everything is float and row-major.
struct Attention {
  size_t rows, heads, kv_heads, head_dim;  // head_dim a multiple of 8
  size_t lanes, pages_per_lane, pages;
  float scale;
  int64_t window;           // 0: none
  const int32_t* lane;      // [rows], -1 for padding
  const int32_t* position;  // [rows]
  const int32_t* table;     // [lanes, pages_per_lane]
  const float* q;           // [rows, heads, head_dim]
  const float* k;           // [rows, kv_heads, head_dim]
  const float* v;           // [rows, kv_heads, head_dim]
  float* k_pages;           // [pages, kv_heads, head_dim, 64]
  float* v_pages;           // [pages, kv_heads, 64, head_dim]
  float* out;               // [rows, heads, head_dim]
};

// Writes k and v to their pages, then attends to positions up to each row's own.
//
// For one row and head: pages in order with a running maximum and sum; in a page, a score is summed
// over head_dim in order, weights are summed in 8 lanes (position modulo 8) that meet in one fixed
// tree, and values are added position after position.
void Attend(const Attention&);

// One head of up to kQueries rows of one lane, in order of position.
constexpr size_t kQueries = 8;
using AttendKernel = void (*)(const Attention&, size_t first_row, size_t rows, size_t head);

void AttendPortable(const Attention&, size_t first_row, size_t rows, size_t head);
void AttendAvx2(const Attention&, size_t first_row, size_t rows, size_t head);

// The positions of page p that the row at `position` sees: [begin, end) within the page.
inline void SeenInPage(const Attention& a, int64_t position, int64_t page, int64_t* begin,
                       int64_t* end) {
  const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  const int64_t base = page * static_cast<int64_t>(kPage);
  *begin = first > base ? first - base : 0;
  *end = position - base + 1 < static_cast<int64_t>(kPage) ? position - base + 1
                                                           : static_cast<int64_t>(kPage);
}

}  // namespace tensorfold
