// Rows times a packed matrix, with what stands before and after the product in a transformer block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace tensorfold {

// A tile is 8 outputs side by side, a panel some tiles: what one pass over memory reads.
constexpr size_t kTile = 8;
constexpr size_t kPanelTiles = 6;

enum class Format : int { kQ4 = 0, kQ8 = 1, kF32 = 2, kF16 = 3, kBF16 = 4 };

// A packed matrix of `outputs` x `inputs`, outputs padded to tiles of 8. Panels of 6 tiles follow
// each other; the last one has the tiles that are left. A panel is read from its first byte to its
// last. Group after group of its inputs it holds
//
//   codes   for each word along the inputs, one 32-bit word of each output of the panel. kQ4: a
//           word is the next 8 codes, lowest bits first; kQ8: the next 4.
//   scale   of each output, half or float
//   offset  likewise
//
// or, for the dense formats, for each input the outputs' values and nothing else.
struct Matrix {
  Format format;
  size_t outputs, inputs, group;
  bool half_scales;
  const unsigned char* data;
  bool int8 = false;  // Rows are rounded to int8 before they are multiplied by codes.

  size_t tiles() const { return (outputs + kTile - 1) / kTile; }
  size_t panels() const { return (tiles() + kPanelTiles - 1) / kPanelTiles; }
  // The tiles of panel p.
  size_t panel_tiles(size_t p) const {
    return p + 1 < panels() ? kPanelTiles : tiles() - p * kPanelTiles;
  }
  const unsigned char* panel(size_t p) const { return data + p * kPanelTiles * tile_bytes(); }
  size_t groups() const { return inputs / group; }
  // Inputs that share a scale in a row of int8: the most, up to 32, that fill groups.
  size_t block() const {
    for (const size_t size : std::initializer_list<size_t>{32, 24, 16}) {
      if (group % size == 0) return size;
    }
    return 8;
  }
  // Codes in a 32-bit word; 0 for the dense formats.
  size_t codes_per_word() const {
    return format == Format::kQ4 ? 8 : format == Format::kQ8 ? 4 : 0;
  }
  // Bytes of one output's scale, and of its value in the dense formats.
  size_t scale_bytes() const { return half_scales ? 2 : 4; }
  size_t value_bytes() const { return format == Format::kF32 ? 4 : 2; }
  // What a tile takes of a panel, for one group and altogether.
  size_t group_bytes() const {
    return codes_per_word() ? kTile * (group / codes_per_word() * 4 + 2 * scale_bytes())
                            : kTile * group * value_bytes();
  }
  size_t tile_bytes() const { return groups() * group_bytes(); }
};

// What becomes of x before the product and of y after it. Null pointers leave a part out.
struct Around {
  const float* norm;  // [inputs]: x / sqrt(mean(x^2) + epsilon) * norm
  float epsilon;
  bool gated;             // x is [rows, 2 * inputs]: silu(first half) * second half
  const float* bias;      // [outputs], added to the product
  const float* residual;  // [rows, outputs], to which the result is added
};

// y [rows, outputs] = residual + (before(x) * matrix^T + bias), all float.
//
// The order of operations for one element of y depends on the matrix alone. A group's sum over
// inputs runs in order with fused multiply-adds; then total = group sum * scale + total, and
// total = group sum of x * offset + total. Dense formats are one group without the last step. Sums
// along x (of squares, of groups) run in 8 lanes that meet in one fixed tree.
//
// With int8, before(x) becomes, block by block, scale = max |x| / 127 and codes = x * (127 / max),
// rounded to the nearest, ties to even. A block's sum is one of integers, which has no order; then
// total = (block sum * block scale) * scale + total, and after a group's last block
// total = group sum of what the codes stand for * offset + total.
void MatMul(const Matrix& matrix, const Around& around, const float* x, size_t rows, float* y);

// y [rows, inputs]: the matrix's rows at `index`, dequantised. Indices out of range give zeros.
void TakeRows(const Matrix& matrix, const int32_t* index, size_t rows, float* y);

// Rows stand in blocks of 4 with their values side by side, as a kernel multiplies them. What is
// left at the end is a block of 2, of 1, or both.
constexpr size_t kRowBlock = 4;

inline size_t BlockRows(size_t rows_left) {
  return rows_left >= kRowBlock ? kRowBlock : rows_left >= 2 ? 2 : 1;
}

// Rows ready to be multiplied: after norm and gate, scaled by the powers of two that masked codes
// are too large by, and summed by group.
struct Prepared {
  const float* x;     // blocks of [inputs, rows of the block]
  const float* sums;  // blocks of [groups, rows of the block]; not read for the dense formats
  size_t rows;
};

// Rows in int8, in blocks as above. A word is 4 codes of one row, lowest bits first, as it meets
// those of a matrix: for kQ8 4 inputs side by side; for kQ4, of every 8, first those at even places
// and then the others.
struct PreparedInt8 {
  const int32_t* codes;  // [inputs / 4, rows of the block]
  const float* scales;   // [inputs / block, rows of the block]
  const float* sums;     // [groups, rows of the block]
  size_t rows;
};

// The two kernels of an instruction set. Prepare makes the rows of one block ready; panel computes
// all rows of one panel.
struct MatMulKernels {
  void (*prepare)(const Matrix&, const Around&, const float* x, size_t rows, float* ready,
                  float* sums);
  void (*panel)(const Matrix&, const Around&, const Prepared&, size_t panel, float* y);
};

// Blocks of smaller values are zeros: 127 / max would not be finite.
constexpr float kLeastInt8 = 1e-30f;

// The same for int8. The rows to prepare are ready but for the rounding, [rows, inputs].
struct MatMulInt8Kernels {
  void (*prepare)(const Matrix&, const float* x, size_t rows, int32_t* codes, float* scales,
                  float* sums);
  void (*panel)(const Matrix&, const Around&, const PreparedInt8&, size_t panel, float* y);
};

extern const MatMulInt8Kernels kMatMulInt8Portable;
extern const MatMulInt8Kernels kMatMulInt8Avx2;
extern const MatMulInt8Kernels kMatMulInt8Vnni;

extern const MatMulKernels kMatMulPortable;
extern const MatMulKernels kMatMulAvx2;
extern const MatMulKernels kMatMulAvx512;

float HalfToFloat(uint16_t half);

}  // namespace tensorfold
