// The work of linear attention on vectors, the same code at every level. A source that includes it
// has defined, in tensorfold's anonymous namespace: Vector, kWidth, Load, Store, Broadcast, Zero,
// Sub, Mul, Fma, Exp, Keep (in a register), SumOf (16 lanes, as vectors), and as macros
// TF_KERNEL and TF_KERNEL_INLINE, the attributes of its functions.
//
// S and u lie with their columns side by side, so what is seen of them is summed without a sum
// across a vector, and up to kRowTile rows share what is read. Bound by reading S for one row, by
// multiply-adds for many.
#pragma once

#include <algorithm>

#include "linear_attention.h"

namespace tensorfold {
namespace {

// Vectors that hold the 16 lanes of a score.
constexpr size_t kParts = 16 / kWidth;

// Vectors of columns that kQ sums of a column take at a time: as many as registers hold.
constexpr int Wide(int queries) {
  const int most = (kWidth == 16 ? 20 : 12) / queries;
  return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

template <int kQ, int kV>
TF_KERNEL_INLINE void Clear(Vector (&sum)[kQ][kV]) {
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) sum[i / kV][i % kV] = Zero();
}

// sum[q][j] += broadcast(value[q]) * row[j]
template <int kQ, int kV>
TF_KERNEL_INLINE void Accumulate(const float* row, const float* const (&value)[kQ], size_t at,
                                 Vector (&sum)[kQ][kV]) {
  Vector shared[kV];
  TF_UNROLL
  for (int j = 0; j < kV; ++j) {
    shared[j] = Load(row + kWidth * j);
    if constexpr (kQ > 1) Keep(shared[j]);
  }
  TF_UNROLL
  for (int i = 0; i < kQ; ++i) {
    const Vector each = Broadcast(value[i][at]);
    TF_UNROLL
    for (int j = 0; j < kV; ++j) sum[i][j] = Fma(each, shared[j], sum[i][j]);
  }
}

// Scores of kQ vectors of a row with a few keys from `place` on; those past `last`, the row's own
// place, are anything.
template <int kQ>
TF_KERNEL_INLINE void SomeScores(const LinearAttention& a, const Segment& s,
                                 const float* const (&asked)[kQ], size_t place, size_t last,
                                 float* scores) {
  constexpr int kJ = 4 / kParts;
  const float* k[kJ];
  for (int j = 0; j < kJ; ++j) k[j] = s.k[std::min(place + j, last)];
  Vector sum[kQ * kParts][kJ];
  Clear(sum);
  for (size_t d = 0; d < a.key_dim; d += 16) {
    TF_UNROLL
    for (size_t part = 0; part < kParts; ++part) {
      const size_t at = d + part * kWidth;
      if (part && at >= a.key_dim) break;
      Vector key[kJ];
      TF_UNROLL
      for (int j = 0; j < kJ; ++j) key[j] = Load(k[j] + at);
      TF_UNROLL
      for (int i = 0; i < kQ; ++i) {
        const Vector each = Load(asked[i] + at);
        Vector(&lanes)[kJ] = sum[i * kParts + part];
        TF_UNROLL
        for (int j = 0; j < kJ; ++j) lanes[j] = Fma(each, key[j], lanes[j]);
      }
    }
  }
  TF_UNROLL
  for (int i = 0; i < kQ; ++i) {
    TF_UNROLL
    for (int j = 0; j < kJ; ++j) {
      scores[i * kChunk + place + j] = SumOf(sum[i * kParts][j], sum[(i + 1) * kParts - 1][j]);
    }
  }
}

template <int kQ>
TF_KERNEL __attribute__((noinline)) void ScoresOf(const LinearAttention& a, const Segment& s,
                                                  float* scores) {
  for (size_t i = 0; i < s.rows; ++i, scores += kQ * kChunk) {
    const size_t at = ((s.first_row + i) * a.key_heads + s.key_head) * a.key_dim;
    const float* asked[kQ];
    asked[0] = a.q + at;
    if constexpr (kQ > 1) asked[1] = a.k + at;
    for (size_t place = 0; place <= s.place + i; place += 4 / kParts) {
      SomeScores(a, s, asked, place, s.place + i, scores);
    }
  }
}

TF_KERNEL void AllScores(const LinearAttention& a, const Segment& s, const LinearScratch& scratch) {
  a.asked() == 2 ? ScoresOf<2>(a, s, scratch.scores) : ScoresOf<1>(a, s, scratch.scores);
}

// Where a head's log-decays of the segment's chunk begin.
TF_KERNEL_INLINE const float* Decays(const LinearAttention& a, const Segment& s, size_t head) {
  return a.kept.G + s.kept_at(a.heads, head) * kChunk * a.decays;
}

// The decay between two sums of log-decays, at channels from d on: e^(to - from).
TF_KERNEL_INLINE Vector Decay(const LinearAttention& a, const float* to, const float* from,
                              size_t d) {
  if (a.decays == 1) return Exp(Broadcast(to[0] - from[0]));
  return Exp(Sub(Load(to + d), Load(from + d)));
}

// A decayed score of one vector of a row where every channel decays by itself.
TF_KERNEL_INLINE float ScoreByChannel(const LinearAttention& a, const float* asked, const float* k,
                                      const float* to, const float* from) {
  Vector lanes[kParts];
  for (size_t part = 0; part < kParts; ++part) lanes[part] = Zero();
  for (size_t d = 0; d < a.key_dim; d += kWidth) {
    Vector& sum = lanes[d / kWidth % kParts];
    sum = Fma(Load(asked + d), Mul(Load(k + d), Decay(a, to, from, d)), sum);
  }
  return SumOf(lanes[0], lanes[kParts - 1]);
}

// What S and u are multiplied by, for one vector of a row at `place`: its decayed channels, then
// its decayed scores with the places up to its own.
TF_KERNEL void Coefficients(const LinearAttention& a, const Segment& s, size_t head, size_t place,
                            const float* asked, const float* scores, float* out) {
  const float* from = Decays(a, s, head);
  const float* G = from + place * a.decays;
  const Vector whole = Exp(Broadcast(G[0]));
  for (size_t d = 0; d < a.key_dim; d += kWidth) {
    const Vector decay = a.decays == 1 ? whole : Exp(Load(G + d));
    Store(out + d, Mul(Load(asked + d), decay));
  }
  out += a.key_dim;
  if (a.decays == 1) {
    // Some more than those up to `place` are written, which nobody reads.
    for (size_t j = 0; j <= place; j += kWidth) {
      const Vector decay = Exp(Sub(Broadcast(G[0]), Load(from + j)));
      Store(out + j, Mul(Load(scores + j), decay));
    }
    return;
  }
  for (size_t j = 0; j <= place; ++j) {
    out[j] = ScoreByChannel(a, asked, s.k[j], G, from + j * a.decays);
  }
}

// Some rows of a segment and one head, and where their operands begin.
struct Tile {
  size_t dim, key_dim, place;  // dim: of values
  const float* S;              // null in a lane's first chunk
  float* u;                    // [64, dim]
  const float* coefficients;   // [rows, asked, key_dim + 64]
  const float* v;
  float* out;
  size_t row_size;  // between the v and out of rows
  const float* b;   // null where u is v
  size_t heads;     // between the b of rows
};

// Output and u of kRows rows in kV vectors of columns.
template <int kRows, int kAsked, int kV>
TF_KERNEL_INLINE void Columns(const Tile& t, size_t column) {
  constexpr int kQ = kRows * kAsked;
  const float* value[kQ];
  for (int i = 0; i < kQ; ++i) value[i] = t.coefficients + i * (t.key_dim + kChunk);
  Vector sum[kQ][kV];
  Clear(sum);
  if (t.S) {
    for (size_t d = 0; d < t.key_dim; ++d) Accumulate(t.S + d * t.dim + column, value, d, sum);
  }
  for (size_t j = 0; j < t.place; ++j) {
    Accumulate(t.u + j * t.dim + column, value, t.key_dim + j, sum);
  }
  TF_UNROLL
  for (int row = 0; row < kRows; ++row) {
    const size_t at = row * t.row_size + column, place = t.place + row;
    TF_UNROLL
    for (int j = 0; j < kV; ++j) {
      Vector u = Load(t.v + at + kWidth * j);
      if constexpr (kAsked == 2) {
        u = Mul(Broadcast(t.b[row * t.heads]), Sub(u, sum[row * kAsked + 1][j]));
      }
      Store(t.u + place * t.dim + column + kWidth * j, u);
      TF_UNROLL
      for (int i = row * kAsked; i < kQ; ++i) {
        sum[i][j] = Fma(Broadcast(value[i][t.key_dim + place]), u, sum[i][j]);
      }
      Store(t.out + at + kWidth * j, sum[row * kAsked][j]);
    }
  }
}

// The columns from `column` on that kV vectors divide, then those that fewer do.
template <int kRows, int kAsked, int kV>
TF_KERNEL_INLINE void AllColumns(const Tile& t, size_t column) {
  for (; column + kV * kWidth <= t.dim; column += kV * kWidth) {
    Columns<kRows, kAsked, kV>(t, column);
  }
  if constexpr (kV > 1) AllColumns<kRows, kAsked, kV / 2>(t, column);
}

template <int kRows, int kAsked>
TF_KERNEL __attribute__((noinline)) void RowsOf(const Tile& t) {
  AllColumns<kRows, kAsked, Wide(kRows * kAsked)>(t, 0);
}

template <int kAsked>
TF_KERNEL_INLINE void TileRows(const Tile& t, size_t count) {
  count == 1   ? RowsOf<1, kAsked>(t)
  : count == 2 ? RowsOf<2, kAsked>(t)
  : count == 3 ? RowsOf<3, kAsked>(t)
               : RowsOf<4, kAsked>(t);
}

TF_KERNEL void SomeRows(const LinearAttention& a, const Segment& s, const LinearScratch& scratch,
                        size_t head, size_t row, size_t count) {
  const size_t asked = a.asked(), size = a.key_dim + kChunk, first = s.first_row + row;
  for (size_t i = 0; i < count; ++i) {
    const size_t key = ((first + i) * a.key_heads + s.key_head) * a.key_dim;
    for (size_t j = 0; j < asked; ++j) {
      Coefficients(a, s, head, s.place + row + i, (j ? a.k : a.q) + key,
                   scratch.scores + ((row + i) * asked + j) * kChunk,
                   scratch.coefficients + (i * asked + j) * size);
    }
  }
  const size_t kept = s.kept_at(a.heads, head), value = first * a.heads + head;
  const Tile t{a.value_dim,
               a.key_dim,
               s.place + row,
               s.first ? nullptr : a.kept.S + kept * a.key_dim * a.value_dim,
               a.kept.u + kept * kChunk * a.value_dim,
               scratch.coefficients,
               a.v + value * a.value_dim,
               a.out + value * a.value_dim,
               a.heads * a.value_dim,
               a.b ? a.b + value : nullptr,
               a.heads};
  asked == 2 ? TileRows<2>(t, count) : TileRows<1>(t, count);
}

// The next S: `start` is the chunk's S, decayed by `decay` [decays].
struct Next {
  size_t dim, key_dim, decays;
  const float* start;    // null in a lane's first chunk
  const float* last;     // the chunk's last G [decays]
  const float* decayed;  // [64, key_dim]
  const float* u;        // [64, dim]
  float* S;
};

// kQ channels of the next S, kV vectors of columns.
template <int kQ, int kV>
TF_KERNEL_INLINE void NextColumns(const Next& n, size_t d, size_t column) {
  const float* value[kQ];
  for (int i = 0; i < kQ; ++i) value[i] = n.decayed + d + i;
  Vector sum[kQ][kV];
  Clear(sum);
  if (n.start) {
    for (int i = 0; i < kQ; ++i) {
      const Vector decay = Exp(Broadcast(n.last[n.decays == 1 ? 0 : d + i]));
      for (int j = 0; j < kV; ++j) {
        sum[i][j] = Mul(Load(n.start + (d + i) * n.dim + column + kWidth * j), decay);
      }
    }
  }
  for (size_t j = 0; j < kChunk; ++j) {
    Accumulate(n.u + j * n.dim + column, value, j * n.key_dim, sum);
  }
  TF_UNROLL
  for (int i = 0; i < kQ * kV; ++i) {
    Store(n.S + (d + i / kV) * n.dim + column + kWidth * (i % kV), sum[i / kV][i % kV]);
  }
}

TF_KERNEL void Following(const LinearAttention& a, const Segment& s, const LinearScratch& scratch,
                         size_t head) {
  const float* G = Decays(a, s, head);
  const float* last = G + (kChunk - 1) * a.decays;
  for (size_t j = 0; j < kChunk; ++j, G += a.decays) {
    for (size_t d = 0; d < a.key_dim; d += kWidth) {
      Store(scratch.decayed + j * a.key_dim + d, Mul(Load(s.k[j] + d), Decay(a, last, G, d)));
    }
  }
  const size_t kept = s.kept_at(a.heads, head), size = a.key_dim * a.value_dim;
  // The other of the lane's two chunks is kept `heads` before this one, or after.
  const size_t other = s.at ? kept - a.heads : kept + a.heads;
  const Next n{a.value_dim,
               a.key_dim,
               a.decays,
               s.first ? nullptr : a.kept.S + kept * size,
               last,
               scratch.decayed,
               a.kept.u + kept * kChunk * a.value_dim,
               a.kept.S + other * size};
  constexpr int kQ = 8, kV = Wide(kQ);
  for (size_t d = 0; d < a.key_dim; d += kQ) {
    size_t column = 0;
    for (; column + kV * kWidth <= a.value_dim; column += kV * kWidth) {
      NextColumns<kQ, kV>(n, d, column);
    }
    for (; column < a.value_dim; column += kWidth) NextColumns<kQ, 1>(n, d, column);
  }
}

constexpr LinearKernels kKernels = {AllScores, SomeRows, Following};

}  // namespace
}  // namespace tensorfold
