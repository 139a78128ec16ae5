// The kernels as XLA custom calls, and the C functions that Python calls directly.

#include "xla/ffi/api/ffi.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "attention.h"
#include "conv.h"
#include "dispatch.h"
#include "linear_attention.h"
#include "matmul.h"
#include "pool.h"
#include "sample.h"

namespace ffi = xla::ffi;

namespace tensorfold {
namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;
using Words = ffi::Buffer<ffi::U32>;

// An operand that may be left out is given as an empty one.
const float* Optional(const Floats& buffer) {
  return buffer.element_count() ? buffer.typed_data() : nullptr;
}

Matrix MakeMatrix(int64_t format, int64_t outputs, int64_t inputs, int64_t group, int64_t scales,
                  int64_t zero, bool int8, const Words& data) {
  return Matrix{static_cast<Format>(format),
                static_cast<size_t>(outputs),
                static_cast<size_t>(inputs),
                static_cast<size_t>(group),
                static_cast<Scales>(scales),
                static_cast<size_t>(zero),
                int8,
                reinterpret_cast<const unsigned char*>(data.typed_data())};
}

ffi::Error MatMulCall(Floats x, Words data, Floats norm, Floats bias, Floats residual,
                      ffi::Result<Floats> y, int64_t format, int64_t group, int64_t scales,
                      int64_t zero, bool int8, float epsilon, int64_t gate) {
  const auto x_shape = x.dimensions();
  const int64_t inputs = gate ? x_shape[1] / 2 : x_shape[1];
  const Matrix matrix = MakeMatrix(format, y->dimensions()[1], inputs, group, scales, zero, int8,
                                   data);
  const Around around{Optional(norm), epsilon, static_cast<Gate>(gate), Optional(bias),
                      Optional(residual)};
  MatMul(matrix, around, x.typed_data(), x_shape[0], y->typed_data());
  return ffi::Error::Success();
}

ffi::Error TakeRowsCall(Ints index, Words data, ffi::Result<Floats> y, int64_t format,
                        int64_t group, int64_t scales, int64_t zero, int64_t outputs) {
  const auto y_shape = y->dimensions();
  const Matrix matrix = MakeMatrix(format, outputs, y_shape[1], group, scales, zero, false, data);
  TakeRows(matrix, index.typed_data(), y_shape[0], y->typed_data());
  return ffi::Error::Success();
}

// The operands k_in and v_in are the results k_pages and v_pages: XLA was told that they alias.
ffi::Error AttentionCall(Floats qkv, Floats cos, Floats sin, Floats q_norm, Floats k_norm,
                         [[maybe_unused]] Floats k_in, [[maybe_unused]] Floats v_in, Ints lane,
                         Ints position, Ints table, Floats sinks, ffi::Result<Floats> out,
                         ffi::Result<Floats> k_pages, ffi::Result<Floats> v_pages, float scale,
                         int64_t window, float epsilon) {
  const auto out_shape = out->dimensions();
  const auto page_shape = v_pages->dimensions();
  Attention a;
  a.rows = out_shape[0];
  a.heads = out_shape[1];
  a.head_dim = out_shape[2];
  a.pages = page_shape[0];
  a.kv_heads = page_shape[1];
  a.pages_per_lane = table.dimensions()[1];
  a.scale = scale;
  a.window = window;
  a.epsilon = epsilon;
  a.lane = lane.typed_data();
  a.position = position.typed_data();
  a.table = table.typed_data();
  a.qkv = qkv.typed_data();
  a.cos = cos.typed_data();
  a.sin = sin.typed_data();
  a.q_norm = Optional(q_norm);
  a.k_norm = Optional(k_norm);
  a.sinks = Optional(sinks);
  a.k_pages = k_pages->typed_data();
  a.v_pages = v_pages->typed_data();
  a.out = out->typed_data();
  const std::unique_ptr<float[]> q(new float[a.rows * a.heads * a.head_dim]);
  a.q = q.get();
  Attend(a);
  return ffi::Error::Success();
}

// The operands k_in to S_in are the results k_kept to S_kept: XLA was told that they alias.
ffi::Error LinearAttentionCall(Floats q, Floats k, Floats v, Floats g, Floats b,
                               [[maybe_unused]] Floats k_in, [[maybe_unused]] Floats u_in,
                               [[maybe_unused]] Floats G_in, [[maybe_unused]] Floats S_in,
                               Ints lane, Ints position, ffi::Result<Floats> out,
                               ffi::Result<Floats> k_kept, ffi::Result<Floats> u_kept,
                               ffi::Result<Floats> G_kept, ffi::Result<Floats> S_kept) {
  const auto key_shape = k.dimensions(), value_shape = v.dimensions();
  LinearAttention a;
  a.rows = key_shape[0];
  a.key_heads = key_shape[1];
  a.key_dim = key_shape[2];
  a.heads = value_shape[1];
  a.value_dim = value_shape[2];
  a.decays = g.dimensions()[2];
  a.lane = lane.typed_data();
  a.position = position.typed_data();
  a.q = q.typed_data();
  a.k = k.typed_data();
  a.v = v.typed_data();
  a.g = g.typed_data();
  a.b = Optional(b);
  a.kept = {k_kept->typed_data(), u_kept->typed_data(), G_kept->typed_data(),
            S_kept->typed_data()};
  a.out = out->typed_data();
  Attend(a);
  return ffi::Error::Success();
}

// The operand kept_in is the result kept: XLA was told that they alias.
ffi::Error ConvCall(Floats x, Floats weight, Floats bias, [[maybe_unused]] Floats kept_in,
                    Ints lane, Ints position, ffi::Result<Floats> out, ffi::Result<Floats> kept) {
  Convolution a;
  a.rows = x.dimensions()[0];
  a.channels = x.dimensions()[1];
  a.taps = weight.dimensions()[1];
  a.lane = lane.typed_data();
  a.position = position.typed_data();
  a.x = x.typed_data();
  a.weight = weight.typed_data();
  a.bias = Optional(bias);
  a.kept = kept->typed_data();
  a.out = out->typed_data();
  Convolve(a);
  return ffi::Error::Success();
}

ffi::Error DrawCall(Floats logits, Floats temperature, Ints top_k, Floats top_p, Floats min_p,
                    Words seed, Ints position, Ints count, ffi::Result<Ints> tokens) {
  const auto shape = logits.dimensions();
  const int64_t rows = shape[0], vocabulary = shape[1];
  const int64_t drawn = std::clamp<int64_t>(count.typed_data()[0], 0, rows);
  int32_t* const out = tokens->typed_data();
  std::fill(out + drawn, out + rows, 0);
  ParallelFor(static_cast<size_t>(drawn), [&](size_t i) {
    const uint32_t* const words = seed.typed_data() + 2 * i;
    const Draw draw{temperature.typed_data()[i], top_k.typed_data()[i],   top_p.typed_data()[i],
                    min_p.typed_data()[i],       {words[0], words[1]}, position.typed_data()[i]};
    out[i] = DrawToken(logits.typed_data() + i * vocabulary, vocabulary, draw);
  });
  return ffi::Error::Success();
}

ffi::Error LogprobsCall(Floats logits, Ints token, Ints asked, ffi::Result<Floats> logprob,
                        ffi::Result<Ints> rank, ffi::Result<Ints> top_ids,
                        ffi::Result<Floats> top) {
  const auto shape = logits.dimensions();
  const size_t vocabulary = shape[1], most = top->dimensions()[1];
  ParallelFor(static_cast<size_t>(shape[0]), [&](size_t i) {
    const Logprobs to{logprob->typed_data() + i, rank->typed_data() + i,
                      top_ids->typed_data() + i * most, top->typed_data() + i * most};
    if (asked.typed_data()[i]) {
      TokenLogprobs(logits.typed_data() + i * vocabulary, vocabulary, token.typed_data()[i], most,
                    to);
    } else {
      *to.logprob = 0;
      *to.rank = 0;
      std::fill(to.top_ids, to.top_ids + most, 0);
      std::fill(to.top, to.top + most, 0.0f);
    }
  });
  return ffi::Error::Success();
}

ffi::Error DigestCall(Floats logits, ffi::Result<Ints> digests) {
  const auto shape = logits.dimensions();
  ParallelFor(static_cast<size_t>(shape[0]), [&](size_t i) {
    const uint32_t sum = Digest(logits.typed_data() + i * shape[1], shape[1]);
    digests->typed_data()[i] = static_cast<int32_t>(sum);
  });
  return ffi::Error::Success();
}

// Leaves its result as the allocator gave it.
ffi::Error UntouchedCall(ffi::Result<Floats>) { return ffi::Error::Success(); }

}  // namespace
}  // namespace tensorfold

using tensorfold::Floats;
using tensorfold::Ints;
using tensorfold::Words;

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldMatMul, tensorfold::MatMulCall,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("format")
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("scales")
                                  .Attr<int64_t>("zero")
                                  .Attr<bool>("int8")
                                  .Attr<float>("epsilon")
                                  .Attr<int64_t>("gate"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldTakeRows, tensorfold::TakeRowsCall,
                              ffi::Ffi::Bind()
                                  .Arg<Ints>()
                                  .Arg<Words>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("format")
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("scales")
                                  .Attr<int64_t>("zero")
                                  .Attr<int64_t>("outputs"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldAttention, tensorfold::AttentionCall,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Attr<float>("scale")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldLinearAttention, tensorfold::LinearAttentionCall,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldConv, tensorfold::ConvCall,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldDraw, tensorfold::DrawCall,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Ints>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Words>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Ret<Ints>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldLogprobs, tensorfold::LogprobsCall,
                              ffi::Ffi::Bind()
                                  .Arg<Floats>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Ret<Floats>()
                                  .Ret<Ints>()
                                  .Ret<Ints>()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldDigest, tensorfold::DigestCall,
                              ffi::Ffi::Bind().Arg<Floats>().Ret<Ints>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(TensorfoldUntouched, tensorfold::UntouchedCall,
                              ffi::Ffi::Bind().Ret<Floats>());

extern "C" {

// Counts up whenever a packed matrix or a call changes its form: library.py expects one number.
int TensorfoldVersion() { return 10; }

// 0: portable, 1: AVX2.
int TensorfoldLevel() { return static_cast<int>(tensorfold::CurrentLevel()); }

// 1 if this machine has the level, which is then used.
int TensorfoldSetLevel(int level) {
  return tensorfold::SetLevel(static_cast<tensorfold::Level>(level));
}
}
