// Linear attention with decay, in the form aligned to chunks of ops/linear_attention.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

constexpr size_t kChunk = 64;

// What lanes keep of their last two chunks, chunk c at c % 2: see Kept in ops/linear_attention.py.
struct KeptChunks {
  float* k;  // [lanes, 2, key_heads, 64, key_dim]
  float* u;  // [lanes, 2, heads, 64, value_dim]
  float* G;  // [lanes, 2, heads, 64, decays]
  float* S;  // [lanes, 2, heads, key_dim, value_dim]
};

// Everything is float and row-major.
struct LinearAttention {
  size_t rows, key_heads, heads, key_dim, value_dim;  // dims are multiples of 8
  size_t decays;            // of a head: 1 or key_dim
  const int32_t* lane;      // [rows], -1 for padding
  const int32_t* position;  // [rows]
  const float* q;           // [rows, key_heads, key_dim]
  const float* k;           // [rows, key_heads, key_dim]
  const float* v;           // [rows, heads, value_dim]
  const float* g;           // [rows, heads, decays]
  const float* b;           // [rows, heads], null where u is v
  KeptChunks kept;
  float* out;  // [rows, heads, value_dim]

  size_t group() const { return heads / key_heads; }
  // How many vectors of a row meet the state: its query, and its key where u is corrected.
  size_t asked() const { return b ? 2 : 1; }
};

// Writes every row's output, and to the lanes' chunks the rows' k, u and G and the S that follow.
//
// The sums of a row, which has place i in its chunk, are all of one order, whatever rows are taken
// together:
//  - G_i is G_{i-1} plus g_i.
//  - A score of a query or a key with the key at place j is summed over key_dim in 16 lanes
//    (index modulo 16), which meet in one fixed tree; it is then multiplied by the decay
//    e^(G_i - G_j). Where channels decay by themselves, the key at j is multiplied by its decays
//    before.
//  - A column of what a query or key sees is one sum: first over key_dim, in order, each channel
//    times e^(G_i), with S; then over places, in order, a score with u_j. The sum of the key is
//    over the places before i, that of the query ends with i itself.
//  - An entry of the next S is one sum: e^(G_63) S, then k_j e^(G_63 - G_j) with u_j in order.
// In a lane's first chunk S is nothing, and left out.
void Attend(const LinearAttention&);

// Rows of one lane in one chunk, and one key head.
struct Segment {
  size_t first_row, rows, key_head;
  size_t place;            // of the first row
  size_t lane, at;         // at: where the chunk is kept, 0 or 1
  bool first;              // the lane's first chunk
  const float* k[kChunk];  // the keys of the chunk up to the last row's

  // Where the chunk of one of `heads` is kept, counted in heads.
  size_t kept_at(size_t heads, size_t head) const { return (lane * 2 + at) * heads + head; }
};

// What some work needs beside its operands.
struct LinearScratch {
  float* scores;        // [rows, asked, 64], of each row with the places up to its own
  float* coefficients;  // [kRowTile, asked, key_dim + 64], what S and then u are multiplied by
  float* decayed;       // [64, key_dim], the keys of a whole chunk
};

// Rows that are taken through S and u together.
constexpr size_t kRowTile = 4;

// Scores: every row's scores without decay, for all heads of the key head.
// Rows: outputs and u of `count` rows, up to kRowTile, of a segment from its row `row` on, for head
// `head`; G is written. Follow: the S that comes after a segment that ends its chunk.
struct LinearKernels {
  void (*scores)(const LinearAttention&, const Segment&, const LinearScratch&);
  void (*rows)(const LinearAttention&, const Segment&, const LinearScratch&, size_t head,
               size_t row, size_t count);
  void (*follow)(const LinearAttention&, const Segment&, const LinearScratch&, size_t head);
};

extern const LinearKernels kLinearPortable;
extern const LinearKernels kLinearAvx2;
// Dims must be multiples of 16.
extern const LinearKernels kLinearAvx512;

}  // namespace tensorfold
