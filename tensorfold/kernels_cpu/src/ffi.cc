// The kernels as XLA custom calls, and the C functions that Python calls directly.

#include "xla/ffi/api/ffi.h"

#include <cstdint>

#include "attention.h"
#include "dispatch.h"
#include "matmul.h"

namespace ffi = xla::ffi;

namespace tensorfold {
namespace {

Matrix MakeMatrix(int64_t format, int64_t outputs, int64_t inputs, int64_t group,
                  ffi::AnyBuffer codes, ffi::AnyBuffer scale, ffi::AnyBuffer offset) {
  return Matrix{static_cast<Format>(format), static_cast<size_t>(outputs),
                static_cast<size_t>(inputs), codes.untyped_data(),
                static_cast<size_t>(group),  scale.element_type() == ffi::F16,
                scale.untyped_data(),        offset.untyped_data()};
}

ffi::Error MatMulCall(ffi::Buffer<ffi::F32> x, ffi::AnyBuffer codes, ffi::AnyBuffer scale,
                      ffi::AnyBuffer offset, ffi::ResultBuffer<ffi::F32> y, int64_t format,
                      int64_t group) {
  const auto x_shape = x.dimensions();
  const auto y_shape = y->dimensions();
  const Matrix matrix = MakeMatrix(format, y_shape[1], x_shape[1], group, codes, scale, offset);
  MatMul(matrix, x.typed_data(), x_shape[0], y->typed_data());
  return ffi::Error::Success();
}

ffi::Error TakeRowsCall(ffi::Buffer<ffi::S32> index, ffi::AnyBuffer codes, ffi::AnyBuffer scale,
                        ffi::AnyBuffer offset, ffi::ResultBuffer<ffi::F32> y, int64_t format,
                        int64_t group, int64_t outputs) {
  const auto y_shape = y->dimensions();
  const Matrix matrix = MakeMatrix(format, outputs, y_shape[1], group, codes, scale, offset);
  TakeRows(matrix, index.typed_data(), y_shape[0], y->typed_data());
  return ffi::Error::Success();
}

ffi::Error AttentionCall(ffi::Buffer<ffi::F32> q, ffi::Buffer<ffi::F32> k, ffi::Buffer<ffi::F32> v,
                         ffi::Buffer<ffi::F32>, ffi::Buffer<ffi::F32>, ffi::Buffer<ffi::S32> lane,
                         ffi::Buffer<ffi::S32> position, ffi::Buffer<ffi::S32> table,
                         ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::F32> k_pages,
                         ffi::ResultBuffer<ffi::F32> v_pages, float scale, int64_t window) {
  const auto q_shape = q.dimensions();
  const auto page_shape = v_pages->dimensions();
  Attention a;
  a.rows = q_shape[0];
  a.heads = q_shape[1];
  a.head_dim = q_shape[2];
  a.pages = page_shape[0];
  a.kv_heads = page_shape[1];
  a.lanes = table.dimensions()[0];
  a.pages_per_lane = table.dimensions()[1];
  a.scale = scale;
  a.window = window;
  a.lane = lane.typed_data();
  a.position = position.typed_data();
  a.table = table.typed_data();
  a.q = q.typed_data();
  a.k = k.typed_data();
  a.v = v.typed_data();
  // The results are the operands' own memory: XLA was told that they alias.
  a.k_pages = k_pages->typed_data();
  a.v_pages = v_pages->typed_data();
  a.out = out->typed_data();
  Attend(a);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace tensorfold

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldMatMul, tensorfold::MatMulCall,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("format")
                                  .Attr<int64_t>("group"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldTakeRows, tensorfold::TakeRowsCall,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("format")
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("outputs"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldAttention, tensorfold::AttentionCall,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window"));

extern "C" {

// 0: portable, 1: AVX2.
int TensorfoldLevel() { return static_cast<int>(tensorfold::CurrentLevel()); }

// 1 if this machine has the level, which is then used.
int TensorfoldSetLevel(int level) {
  return tensorfold::SetLevel(static_cast<tensorfold::Level>(level));
}
}
