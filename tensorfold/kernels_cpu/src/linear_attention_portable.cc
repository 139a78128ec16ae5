// Linear attention without instructions of its own: a vector is 8 floats.
#include <cmath>
#include <cstddef>

#define TF_KERNEL
#define TF_KERNEL_INLINE inline
#define TF_UNROLL

namespace tensorfold {
namespace {

constexpr size_t kWidth = 8;
struct Vector {
  float lane[kWidth];
};

template <class Value>
inline Vector Each(Value&& value) {
  Vector out;
  for (size_t i = 0; i < kWidth; ++i) out.lane[i] = value(i);
  return out;
}

inline Vector Load(const float* at) {
  return Each([&](size_t i) { return at[i]; });
}
inline void Store(float* at, const Vector& x) {
  for (size_t i = 0; i < kWidth; ++i) at[i] = x.lane[i];
}
inline Vector Broadcast(float x) {
  return Each([&](size_t) { return x; });
}
inline Vector Zero() { return Broadcast(0.0f); }
inline Vector Sub(const Vector& x, const Vector& y) {
  return Each([&](size_t i) { return x.lane[i] - y.lane[i]; });
}
inline Vector Mul(const Vector& x, const Vector& y) {
  return Each([&](size_t i) { return x.lane[i] * y.lane[i]; });
}
inline Vector Fma(const Vector& x, const Vector& y, const Vector& z) {
  return Each([&](size_t i) { return std::fma(x.lane[i], y.lane[i], z.lane[i]); });
}
inline Vector Exp(const Vector& x) {
  return Each([&](size_t i) { return std::exp(x.lane[i]); });
}
inline void Keep(Vector&) {}
inline float SumOf(const Vector& first, const Vector& second) {
  const Vector s = Each([&](size_t i) { return first.lane[i] + second.lane[i]; });
  return ((s.lane[0] + s.lane[4]) + (s.lane[2] + s.lane[6])) +
         ((s.lane[1] + s.lane[5]) + (s.lane[3] + s.lane[7]));
}

}  // namespace
}  // namespace tensorfold

#include "linear_attention_tiles.h"

namespace tensorfold {

const LinearKernels kLinearPortable = kKernels;

}  // namespace tensorfold
