// Rows times a packed matrix, with what stands before and after the product in a transformer block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

// How many outputs stand side by side in the packed form.
constexpr size_t kTile = 8;

enum class Format : int { kQ4 = 0, kQ8 = 1, kF32 = 2, kF16 = 3, kBF16 = 4 };

// A packed matrix of `outputs` x `inputs`, outputs padded to tiles of 8. A tile holds
//
//   codes   for each word along the inputs, one 32-bit word of each of the 8 outputs. kQ4: a word
//   is
//           the next 8 codes, lowest bits first; kQ8: the next 4.
//   scale   for each group of inputs, 8 values, half or float
//   offset  likewise
//
// or, for the dense formats, for each input the 8 outputs' values and nothing else.
struct Matrix {
  Format format;
  size_t outputs, inputs, group;
  bool half_scales;
  const unsigned char* data;

  size_t tiles() const { return (outputs + kTile - 1) / kTile; }
  size_t groups() const { return inputs / group; }
  // Codes in a 32-bit word; 0 for the dense formats.
  size_t codes_per_word() const {
    return format == Format::kQ4 ? 8 : format == Format::kQ8 ? 4 : 0;
  }
  size_t code_bytes() const {
    if (format == Format::kF32) return inputs * kTile * 4;
    if (format == Format::kF16 || format == Format::kBF16) return inputs * kTile * 2;
    return inputs / codes_per_word() * kTile * 4;
  }
  size_t scale_bytes() const {
    return codes_per_word() ? groups() * kTile * (half_scales ? 2 : 4) : 0;
  }
  size_t tile_bytes() const { return code_bytes() + 2 * scale_bytes(); }
  const unsigned char* codes(size_t tile) const { return data + tile * tile_bytes(); }
  const unsigned char* scale(size_t tile) const { return codes(tile) + code_bytes(); }
  const unsigned char* offset(size_t tile) const { return scale(tile) + scale_bytes(); }
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
void MatMul(const Matrix& matrix, const Around& around, const float* x, size_t rows, float* y);

// y [rows, inputs]: the matrix's rows at `index`, dequantised. Indices out of range give zeros.
void TakeRows(const Matrix& matrix, const int32_t* index, size_t rows, float* y);

// Rows ready to be multiplied: scaled by the powers of two that masked codes are too large by, and
// summed by group.
struct Prepared {
  const float* x;
  const float* sums;
  size_t rows;
};

// The two kernels of an instruction set. Prepare makes one row ready (sums is null for dense
// formats); Block computes all rows of the tiles [first, first + count).
struct MatMulKernels {
  void (*prepare)(const Matrix&, const Around&, const float* x, float* ready, float* sums);
  void (*block)(const Matrix&, const Around&, const Prepared&, size_t first, size_t count,
                float* y);
};

extern const MatMulKernels kMatMulPortable;
extern const MatMulKernels kMatMulAvx2;

float HalfToFloat(uint16_t half);

}  // namespace tensorfold
