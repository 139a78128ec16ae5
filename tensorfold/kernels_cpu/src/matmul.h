// Rows times a packed matrix.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

// How many outputs stand side by side in the packed form.
constexpr size_t kTile = 8;

enum class Format : int { kQ4 = 0, kQ8 = 1, kF32 = 2, kF16 = 3, kBF16 = 4 };

// A packed matrix of `outputs` x `inputs`, outputs padded to tiles of 8.
//
// codes: for each tile, for each word along the inputs, one 32-bit word of each of the 8 outputs.
//   kQ4: a word is the next 8 codes, lowest bits first; kQ8: the next 4.
//   Others: no words; for each tile, for each input, the 8 outputs' values.
// scale, offset: for each tile, for each group of inputs, 8 values, float or half.
struct Matrix {
  Format format;
  size_t outputs, inputs;
  const void* codes;
  size_t group;
  bool half_scales;
  const void* scale;
  const void* offset;

  size_t tiles() const { return (outputs + kTile - 1) / kTile; }
  size_t groups() const { return inputs / group; }
};

// y [rows, outputs] = x [rows, inputs] * matrix^T, all float.
//
// The order of operations for one element of y depends on the matrix alone. A group's sum over
// inputs runs in order with fused multiply-adds; then total = group sum * scale + total, and
// total = group sum of x * offset + total. Dense formats are one group without the last step.
void MatMul(const Matrix& matrix, const float* x, size_t rows, float* y);

// y [rows, inputs]: the matrix's rows at `index`, dequantised. Indices out of range give zeros.
void TakeRows(const Matrix& matrix, const int32_t* index, size_t rows, float* y);

// Rows ready to be multiplied: scaled by the powers of two that masked codes are too large by, and
// summed by group.
struct Prepared {
  const float* x;
  const float* sums;
  size_t rows;
};

// The block kernel of one instruction set: all rows of the tiles [first, first + count).
using BlockKernel = void (*)(const Matrix&, const Prepared&, size_t first, size_t count, float* y);

void BlockPortable(const Matrix&, const Prepared&, size_t first, size_t count, float* y);
void BlockAvx2(const Matrix&, const Prepared&, size_t first, size_t count, float* y);

float HalfToFloat(uint16_t half);

}  // namespace tensorfold
