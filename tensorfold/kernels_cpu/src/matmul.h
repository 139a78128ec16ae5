// Rows times a packed matrix, with what stands before and after the product in a transformer block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

namespace tensorfold {

// A tile is 8 outputs side by side, a panel some tiles: what one pass over memory reads.
constexpr size_t kTile = 8;
constexpr size_t kPanelTiles = 6;

enum class Format : int {
  kQ4 = 0,
  kQ8 = 1,
  kF32 = 2,
  kF16 = 3,
  kBF16 = 4,
  kQ5 = 5,
  kQ6 = 6,
  kE4M3 = 7,
};

// How scales and offsets are written: as they are, or in steps: signed bytes that multiply a half
// of their own for every kStepInputs inputs.
enum class Scales : int { kHalf = 0, kFloat = 1, kSteps = 2 };
constexpr size_t kStepInputs = 256;

// A packed matrix of `outputs` x `inputs`, outputs padded to tiles of 8. Panels of 6 tiles follow
// each other; the last one has the tiles that are left. A panel is read from its first byte to its
// last. With kSteps it begins with the halves: for every kStepInputs inputs those of the scales of
// each output, and then those of the offsets. Group after group of its inputs it holds
//
//   codes   for each word along the inputs, one 32-bit word of each output of the panel. kQ4: a
//           word is the next 8 codes, lowest bits first; kQ8: the next 4. kQ5 and kQ6 come in
//           bundles of 32 and 16 codes, see Bundle. kE4M3: 16 bits instead, the next 2 codes.
//   scale   of each output
//   offset  likewise; not there if every offset is -zero times its scale, and for kE4M3
//
// or, for the dense formats, for each input the outputs' values and nothing else.
struct Matrix {
  Format format;
  size_t outputs, inputs, group;
  Scales scales;
  size_t zero;  // The code that means 0; 0 if offsets are written.
  bool int8;    // Rows are rounded to int8 before they are multiplied by codes.
  const unsigned char* data;

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
  // Whether codes are 8-bit floats (see kE4M3Scale), which have no offsets, and not integers.
  bool floats() const { return format == Format::kE4M3; }
  // Bits of a code; 0 for the dense formats.
  size_t bits() const {
    return format == Format::kQ4   ? 4
           : format == Format::kQ5 ? 5
           : format == Format::kQ6 ? 6
           : format == Format::kQ8 ? 8
           : floats()              ? 8
                                   : 0;
  }
  // Bytes of one output's word of codes.
  size_t word_bytes() const { return floats() ? 2 : 4; }
  // Bytes of one output's scale, and of its value in the dense formats.
  size_t scale_bytes() const {
    return scales == Scales::kSteps ? 1 : scales == Scales::kHalf ? 2 : 4;
  }
  size_t value_bytes() const { return format == Format::kF32 ? 4 : 2; }
  // Scales, and offsets if there are any.
  size_t scale_rows() const { return zero || floats() ? 1 : 2; }
  // What a tile takes of a panel: before the groups, for one group, and altogether.
  size_t head_bytes() const {
    return bits() && scales == Scales::kSteps ? inputs / kStepInputs * scale_rows() * kTile * 2 : 0;
  }
  size_t code_bytes() const { return kTile * group * bits() / 8; }
  size_t group_bytes() const {
    return bits() ? code_bytes() + kTile * scale_rows() * scale_bytes()
                  : kTile * group * value_bytes();
  }
  size_t tile_bytes() const { return head_bytes() + groups() * group_bytes(); }
};

// 32 codes of 5 bits or 16 of 6 in one output's words: first their lower four bits, then the rest.
// Spread out, four codes are the bytes of a word; word j has its lower bits in word j / 2, in the
// lower or the upper half of each byte, and the rest in the last word, from bit j * (bits - 4) of
// each byte on. kQ8 is a bundle of one word, which is spread out as it stands.
template <int kBits>
struct Bundle {
  static constexpr int kCodes = kBits == 5 ? 32 : kBits == 6 ? 16 : 4;
  static constexpr int kSpread = kCodes / 4;
  static constexpr int kWords = kCodes * kBits / 32;
  // What the last word is shifted up by for word j, and which of its bits then count.
  static constexpr int Shift(int j) { return 4 - j * (kBits - 4); }
  static constexpr int kRest = ((1 << kBits) - 16) * 0x01010101;
};

// A code of kE4M3 has a sign, 4 bits of exponent and 3 of mantissa. Below the sign they are what a
// half has from its bit 7 on, one bit of exponent short: as a half the code is 2^-8 of its value,
// and a half's conversion is exact for the smallest ones too, whatever becomes of float denormals.
// So codes are 2^8 too small and rows 2^8 too large (see Prepared). The two codes that are NaN are
// no part of a matrix.
constexpr float kE4M3Scale = 256.0f;

constexpr uint16_t E4M3ToHalf(uint32_t code) {
  return static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
}

// One row of scales or offsets of a panel: of group g, for all its outputs.
struct ScaleRow {
  // which: 0 for scales, 1 for offsets
  ScaleRow(const Matrix& matrix, const unsigned char* panel, size_t tiles, size_t g, size_t which)
      : values(panel + tiles * (matrix.head_bytes() + g * matrix.group_bytes() +
                                matrix.code_bytes() + which * kTile * matrix.scale_bytes())),
        steps(panel +
              (g * matrix.group / kStepInputs * matrix.scale_rows() + which) * tiles * kTile * 2) {}

  const unsigned char* values;
  const unsigned char* steps;
};

// silu(a) is a / (1 + e^-a), gelu(a), in its tanh form, a / (1 + e^-g) with
// g = a (kGelu + kGeluCubed a^2).
enum class Gate : int { kNone = 0, kSilu = 1, kGelu = 2 };
constexpr float kGelu = 1.5957691216057308f, kGeluCubed = 0.07135481627260025f;

// What becomes of x before the product and of y after it. Null pointers leave a part out.
struct Around {
  const float* norm;  // [inputs]: x / sqrt(mean(x^2) + epsilon) * norm
  float epsilon;
  Gate gate;              // x is [rows, 2 * inputs]: of the first half, times the second half
  const float* bias;      // [outputs], added to the product
  const float* residual;  // [rows, outputs], to which the result is added

  // Floats of a row of x before a matrix of so many inputs.
  size_t x_row(size_t inputs) const { return gate == Gate::kNone ? inputs : 2 * inputs; }
};

// y [rows, outputs] = residual + (before(x) * matrix^T + bias), all float.
//
// The order of operations for one element of y depends on the matrix alone. A group's sum over
// inputs runs in order with fused multiply-adds; then total = group sum * scale + total, and
// total = group sum of x * offset + total. kE4M3 is without the last step; dense formats are one
// group without both. Sums along x (of squares, of groups) run in 8 lanes that meet in one fixed
// tree.
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
// are too large by (those of kE4M3: too small), and summed by group.
struct Prepared {
  const float* x;     // blocks of [inputs, rows of the block]
  const float* sums;  // blocks of [groups, rows of the block]; read only if there are offsets
  size_t rows;
};

// Memory of a thread that grows with what is asked of it: a kernel runs on one of a few threads,
// which come back again and again. Begins on a cache line.
class Scratch {
 public:
  float* At(size_t floats) {
    if (size_ < floats) {
      memory_.reset(new float[floats + 16]);
      size_ = floats;
    }
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<float*>((at + 63) / 64 * 64);
  }

 private:
  std::unique_ptr<float[]> memory_;
  size_t size_ = 0;
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

// One row before the product, [inputs], as for floats.
inline void ReadyRow(const MatMulKernels& kernels, const Matrix& matrix, const Around& around,
                     const float* x, float* ready) {
  // The rows of a dense matrix need nothing else.
  Matrix dense = matrix;
  dense.format = Format::kF32;
  kernels.prepare(dense, around, x, 1, ready, nullptr);
}

// Blocks of smaller values are zeros: 127 / max would not be finite.
constexpr float kLeastInt8 = 1e-30f;

// The same for int8.
struct MatMulInt8Kernels {
  void (*prepare)(const Matrix&, const Around&, const float* x, size_t rows, int32_t* codes,
                  float* scales, float* sums);
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
