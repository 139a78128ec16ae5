// Attention of rows over the pages of their lanes, from the fused projection to the mixed heads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

constexpr size_t kPage = 64;

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
  float* k_pages;           // [pages, kv_heads, head_dim, 64]
  float* v_pages;           // [pages, kv_heads, 64, head_dim]
  float* q;                 // [rows, heads, head_dim], room for the rotated and scaled queries
  float* out;               // [rows, heads, head_dim]
};

// Normalises and rotates queries and keys, writes keys and values to their pages, then attends to
// positions up to each row's own.
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
