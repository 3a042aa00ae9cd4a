// Tokens are gone through in chunks, classes in blocks. The first pass over the blocks gives the three
// numbers of a chunk's tokens, the second their gradients: the logits of a block, computed again, or their
// exponentials, kept, become the gradient of the logits. Two products with it follow while it is in the
// cache.
//
// Every task of the second pass has a range of blocks. It writes the gradients of their rows, and its part of
// that of the hidden vectors, which are then added up in the order of the ranges.
#include "full_softmax/full_softmax.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/arena.h"
#include "common/huge_pages.h"
#include "common/tasks.h"
#include "full_softmax/full_softmax_blocks.h"
#include "full_softmax/full_softmax_kernels.h"

namespace largeout {
namespace {

// The tokens of a call, hidden vectors in float32.
struct SoftmaxTokens {
  const float* hidden;     // [count, dim]
  const int32_t* targets;  // [count], a class, or -1
  int64_t count;
  bool skip_target;
  bool in_bfloat16 = false;  // rows and gradients of logits may be rounded to bfloat16 for the products
};

// SoftmaxBatchGradients of those.
template <typename T>
struct SoftmaxGradients {
  float* hidden;  // [tokens, dim]
  T* rows;        // [classes, dim]
  float* bias;    // [classes]
};

// Tokens of one product: a multiple of the register tiles' 14 and 6 rows.
constexpr int64_t kTokenBlock = 252;
static_assert(kTokenBlock % 2 == 0, "");
constexpr int64_t kMostTokens = 8 * kTokenBlock;  // of a chunk
// Tokens of a chunk whose exponentials are kept: with fewer, rows come from memory too often.
constexpr int64_t kFewestKept = 96;
constexpr int64_t kPartialBytes = 32 << 20;

template <typename T>
class Softmax {
 public:
  Softmax(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens, const CpuCall& call)
      : gemm_(Products(tokens.in_bfloat16)),
        table_(table),
        tokens_(tokens),
        parallel_(call.parallel),
        scratch_(call.scratch),
        dim_(table.dim),
        blocks_(table, gemm_),
        hidden_ld_(OddLines(gemm_.Words(table.dim))) {}

  // Tokens of a chunk of the second pass, so that its parts of the gradient of the hidden vectors stay small.
  int64_t MostTokens() const {
    const int64_t fit = kPartialBytes / (SoftmaxBlocks<T>::kRanges * std::max<int64_t>(1, dim_) *
                                         static_cast<int64_t>(sizeof(float)));
    return std::min(kMostTokens, std::max(kTokenBlock, fit / kTokenBlock * kTokenBlock));
  }
  // Tokens of a chunk whose exponentials are kept in so many bytes; 0: too few.
  int64_t KeptTokens(int64_t bytes) const {
    const int64_t per_token =
        std::max<int64_t>(1, blocks_.count * blocks_.size) * static_cast<int64_t>(sizeof(float));
    const int64_t fit = std::min(bytes / per_token, MostTokens());
    return fit < std::min(kFewestKept, tokens_.count) ? 0 : fit;
  }

  // Memory for chunks of at most n tokens: their three numbers, what is kept, gradients. All of it in one
  // piece, which an op keeps from step to step.
  int Reserve(int64_t n, bool terms, bool keep, const SoftmaxGradients<T>& out) {
    n = std::min(n, tokens_.count);
    const auto lay_out = [&](Arena arena) {
      hidden_ = arena.Take<float>(n * hidden_ld_);
      for (float** per_block : {&high_, &total_, &sum_}) {
        if (terms) *per_block = arena.Take<float>(blocks_.count * n);
      }
      for (float** per_token : {&picked_, &of_p_, &of_target_, &of_all_}) *per_token = arena.Take<float>(n);
      if (keep) kept_ = arena.Take<float>(blocks_.count * blocks_.size * n);
      if (out.rows != nullptr) panels_ = arena.Take<float>(gemm_.Words(n) * RoundUp(dim_, gemm_.width));
      if (out.hidden != nullptr) partial_ = arena.Take<float>(blocks_.ranges * n * dim_);
      return arena.bytes();
    };
    char* memory = scratch_->Take<char>(lay_out(Arena()));
    if (memory == nullptr) return kNoMemory;
    lay_out(Arena(memory));
    return 0;
  }

  // The tokens [begin, end) come next.
  void Open(int64_t begin, int64_t end) {
    begin_ = begin, count_ = end - begin;
    const float* from = tokens_.hidden + begin * dim_;
    parallel_->For(count_, dim_ + 1, [&](int64_t first, int64_t last) {
      gemm_.left(from + first * dim_, dim_, last - first, dim_, hidden_ + first * hidden_ld_, hidden_ld_);
    });
  }

  // The first pass over the open tokens.
  void Terms(const SoftmaxTerms& terms) {
    const int64_t n = count_;
    float *high = high_, *total = total_, *sum = sum_, *picked = picked_;
    std::fill_n(picked, n, 0.f);
    RunTasks<BlockScratch>(parallel_, blocks_.count, Cost(1), [&](int64_t block, BlockScratch* scratch) {
      const float* columns = blocks_.PackColumns(block, scratch);
      EachTokenBlock([&](int64_t t, int64_t m) {
        float* logits = Aligned(&scratch->logits, m * blocks_.size);
        float* keep = kept_ != nullptr ? Kept(block, t) : nullptr;
        Multiply(block, t, m, columns, logits);
        exp_.terms(logits, blocks_.size, m, blocks_.width(block), Targets() + t, blocks_.first(block),
                   tokens_.skip_target, keep, high + block * n + t, total + block * n + t,
                   sum + block * n + t, picked + t);
      });
    });
    parallel_->For(n, blocks_.count * 20 + 50, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        float top = -std::numeric_limits<float>::infinity();
        for (int64_t b = 0; b < blocks_.count; ++b) {
          const float h = high[b * n + t];
          if (h > top || h != h) top = h;
        }
        double exps = 0.0, all = 0.0;
        for (int64_t b = 0; b < blocks_.count; ++b) {
          const float h = high[b * n + t];
          all += sum[b * n + t];
          if (h != -std::numeric_limits<float>::infinity())
            exps += total[b * n + t] * std::exp(double(h) - top);
          if (total[b * n + t] != total[b * n + t]) exps = total[b * n + t];
        }
        const double log_total = std::log(exps);
        const bool aimed = Targets()[t] >= 0 && !tokens_.skip_target;
        terms.lse[begin_ + t] =
            exps == 0.0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(top + log_total);
        // Not lse - picked: exact where one logit stands far above the others.
        terms.ce[begin_ + t] = aimed ? static_cast<float>((double(top) - picked[t]) + log_total) : 0.f;
        terms.sum[begin_ + t] = tokens_.skip_target ? 0.f : static_cast<float>(all);
      }
    });
  }

  // The second pass over the open tokens, with what Terms kept, or computed again. Pointers are to all
  // tokens. `first`: of all chunks.
  void Gradients(const float* lse, const SoftmaxUpstream& upstream, const SoftmaxGradients<T>& out,
                 bool first) {
    const int64_t n = count_;
    float* partial = partial_;
    for (int64_t t = 0; t < n; ++t) {
      const bool aimed = Targets()[t] >= 0 && !tokens_.skip_target;
      const float of_ce = aimed ? upstream.ce[begin_ + t] : 0.f;
      of_p_[t] = upstream.lse[begin_ + t] + of_ce, of_target_[t] = -of_ce;
      of_all_[t] = tokens_.skip_target ? 0.f : upstream.sum[begin_ + t];
    }
    if (out.rows != nullptr) {
      RunTasks<BlockScratch>(
          parallel_, (n + kTokenBlock - 1) / kTokenBlock, dim_ * kTokenBlock, [&](int64_t i, BlockScratch*) {
            const int64_t t = i * kTokenBlock, m = std::min(kTokenBlock, n - t);
            gemm_.pack(tokens_.hidden + (begin_ + t) * dim_, dim_, m, dim_, PanelsOf(t));
          });
    }
    const int64_t range_cost = Cost(3) * (blocks_.count / std::max<int64_t>(1, blocks_.ranges) + 1);
    RunTasks<BlockScratch>(parallel_, blocks_.ranges, range_cost, [&](int64_t range, BlockScratch* scratch) {
      for (int64_t block = blocks_.first_of_range(range); block < blocks_.first_of_range(range + 1);
           ++block) {
        const int64_t width = blocks_.width(block);
        const float* columns = kept_ == nullptr ? blocks_.PackColumns(block, scratch) : nullptr;
        const float* rows = partial != nullptr ? blocks_.PackRows(block, scratch) : nullptr;
        float* row_sums = nullptr;  // where the gradients of the rows are added up
        if (out.rows != nullptr) {
          if constexpr (std::is_same<T, float>::value) {
            row_sums = out.rows + blocks_.first(block) * dim_;
          } else {
            row_sums = Aligned(&scratch->sums, blocks_.size * dim_);
          }
        }
        EachTokenBlock([&](int64_t t, int64_t m) {
          const float* g = GradientsOfLogits(block, t, m, columns, lse, scratch);
          if (partial != nullptr) {
            const LeftMatrix left = LeftOf(gemm_, g, blocks_.size, m, width, &scratch->words);
            gemm_.multiply(m, dim_, gemm_.Words(width), left.data, left.row, left.k, rows, nullptr,
                           partial + (range * n + t) * dim_, dim_, block > blocks_.first_of_range(range));
          }
          if (row_sums != nullptr) {
            const bool add = t > 0 || (!first && std::is_same<T, float>::value);
            const LeftMatrix left = TransposedOf(gemm_, g, blocks_.size, m, width, &scratch->turned);
            gemm_.multiply(width, dim_, gemm_.Words(m), left.data, left.row, left.k, PanelsOf(t), nullptr,
                           row_sums, dim_, add);
          }
          if (out.bias != nullptr) {
            float* sums = out.bias + blocks_.first(block);
            if (first && t == 0) std::fill_n(sums, width, 0.f);
            exp_.add_columns(g, blocks_.size, m, width, sums);
          }
        });
        if constexpr (!std::is_same<T, float>::value) {
          if (row_sums != nullptr)
            TakeSums(row_sums, width * dim_, first, out.rows + blocks_.first(block) * dim_);
        }
      }
    });
    if (partial == nullptr) return;
    float* d_hidden = out.hidden + begin_ * dim_;
    parallel_->For(n * dim_, blocks_.ranges + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float sum = 0.f;
        for (int64_t range = 0; range < blocks_.ranges; ++range) sum += partial[range * n * dim_ + i];
        d_hidden[i] = sum;
      }
    });
  }

  // What no chunk writes where there are no tokens.
  void WriteNothing(const SoftmaxGradients<T>& out) {
    if (out.rows != nullptr) std::fill_n(out.rows, table_.classes * dim_, T{});
    if (out.bias != nullptr) std::fill_n(out.bias, table_.classes, 0.f);
  }

 private:
  const int32_t* Targets() const { return tokens_.targets + begin_; }
  // Cycles of so many products over one block.
  int64_t Cost(int64_t products) const { return 1000 + products * count_ * blocks_.size * (dim_ / 16 + 1); }

  template <typename Body>
  void EachTokenBlock(const Body& body) const {
    for (int64_t t = 0; t < count_; t += kTokenBlock) body(t, std::min(kTokenBlock, count_ - t));
  }

  float* Kept(int64_t block, int64_t t) { return kept_ + (block * count_ + t) * blocks_.size; }

  // Of some tokens and the classes of a block: from what Terms kept, or from `columns`.
  const float* GradientsOfLogits(int64_t block, int64_t t, int64_t m, const float* columns, const float* lse,
                                 BlockScratch* scratch) {
    float* g = Aligned(&scratch->logits, m * blocks_.size);
    if (kept_ != nullptr) {
      exp_.gradient_of_exps(Kept(block, t), g, blocks_.size, m, blocks_.width(block), Targets() + t,
                            blocks_.first(block), tokens_.skip_target, high_ + block * count_ + t,
                            lse + begin_ + t, of_p_ + t, of_target_ + t, of_all_ + t);
    } else {
      Multiply(block, t, m, columns, g);
      exp_.gradient(g, blocks_.size, m, blocks_.width(block), Targets() + t, blocks_.first(block),
                    tokens_.skip_target, lse + begin_ + t, of_p_ + t, of_target_ + t, of_all_ + t);
    }
    return g;
  }

  void Multiply(int64_t block, int64_t t, int64_t m, const float* columns, float* logits) {
    gemm_.multiply(m, blocks_.width(block), gemm_.Words(dim_), hidden_ + t * hidden_ld_, hidden_ld_, 1,
                   columns, blocks_.bias(block), logits, blocks_.size, false);
  }

  // The open tokens from t on, as the rows that gradients of logits are multiplied with. Blocks of tokens are
  // even, so that no word has numbers of two of them.
  float* PanelsOf(int64_t t) { return panels_ + t / gemm_.per_word * RoundUp(dim_, gemm_.width); }

  static void TakeSums(const float* sums, int64_t n, bool first, T* out) {
    for (int64_t i = 0; i < n; ++i) FromFloat(first ? sums[i] : ToFloat(out[i]) + sums[i], out + i);
  }

  const GemmKernels& gemm_;
  const SoftmaxExpKernels& exp_ = LARGEOUT_SELECT(kSoftmaxExp);
  const SoftmaxRows<T> table_;
  const SoftmaxTokens tokens_;
  Parallel* const parallel_;
  Scratch* const scratch_;
  const int64_t dim_;
  const SoftmaxBlocks<T> blocks_;
  const int64_t hidden_ld_;
  int64_t begin_ = 0, count_ = 0;  // the open tokens
  float *hidden_ = nullptr, *kept_ = nullptr, *panels_ = nullptr, *partial_ = nullptr;
  float *high_ = nullptr, *total_ = nullptr, *sum_ = nullptr, *picked_ = nullptr, *of_p_ = nullptr,
        *of_target_ = nullptr, *of_all_ = nullptr;
};

// Calls body(begin, end, first) for chunks of at most `size` tokens, as even as they can be.
template <typename Body>
void EachChunk(int64_t tokens, int64_t size, const Body& body) {
  const int64_t chunks = (tokens + size - 1) / size;
  for (int64_t i = 0; i < chunks; ++i) body(tokens * i / chunks, tokens * (i + 1) / chunks, i == 0);
}

template <typename T>
int TermsOf(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens, const SoftmaxTerms& terms,
            const CpuCall& call) {
  Softmax<T> softmax(table, tokens, call);
  LARGEOUT_RETURN_IF_ERROR(softmax.Reserve(kMostTokens, true, false, {}));
  EachChunk(tokens.count, kMostTokens, [&](int64_t begin, int64_t end, bool) {
    softmax.Open(begin, end);
    softmax.Terms(terms);
  });
  return 0;
}

template <typename T>
int GradientOf(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens, const float* lse,
               const SoftmaxUpstream& upstream, const SoftmaxGradients<T>& gradients, const CpuCall& call) {
  Softmax<T> softmax(table, tokens, call);
  const int64_t most = softmax.MostTokens();
  LARGEOUT_RETURN_IF_ERROR(softmax.Reserve(most, false, false, gradients));
  if (tokens.count == 0) softmax.WriteNothing(gradients);
  EachChunk(tokens.count, most, [&](int64_t begin, int64_t end, bool first) {
    softmax.Open(begin, end);
    softmax.Gradients(lse, upstream, gradients, first);
  });
  return 0;
}

template <typename T>
int TermsAndGradientOf(const SoftmaxRows<T>& table, const SoftmaxTokens& tokens,
                       const SoftmaxExpected& expected, int64_t scratch_bytes, const SoftmaxTerms& terms,
                       const SoftmaxGradients<T>& gradients, const CpuCall& call) {
  Softmax<T> softmax(table, tokens, call);
  std::vector<float> of_lse(tokens.count), of_ce(tokens.count), of_sum(tokens.count);
  const auto upstream = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      of_lse[t] = expected.OfLse(t, terms.lse[t]), of_ce[t] = expected.OfCe(t), of_sum[t] = expected.OfSum(t);
    }
    return SoftmaxUpstream{of_lse.data(), of_ce.data(), of_sum.data()};
  };
  // Rows of bfloat16 are rounded after every chunk, so there are as few chunks as can be.
  const int64_t kept = std::is_same<T, float>::value ? softmax.KeptTokens(scratch_bytes) : 0;
  const int64_t most = kept > 0 ? kept : softmax.MostTokens();
  LARGEOUT_RETURN_IF_ERROR(softmax.Reserve(most, true, kept > 0, gradients));
  if (tokens.count == 0) softmax.WriteNothing(gradients);
  EachChunk(tokens.count, most, [&](int64_t begin, int64_t end, bool first) {
    softmax.Open(begin, end);
    softmax.Terms(terms);
    softmax.Gradients(terms.lse, upstream(begin, end), gradients, first);
  });
  return 0;
}

template <typename Id>
BadTarget FirstBadTarget(const Id* targets, int64_t tokens, int64_t classes) {
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t target = static_cast<int64_t>(targets[t]);
    if (target < -1 || target >= classes) return {t, target};
  }
  return {};
}

template <typename X, typename Y>
void Convert(const X* in, int64_t n, Y* out, Parallel* parallel) {
  parallel->For(n, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) FromFloat(ToFloat(in[i]), out + i);
  });
}

// The batch with targets of int32 and hidden vectors of float32: copies, where it has others.
template <typename H, typename Id>
int ToTokens(const SoftmaxBatch<H, Id>& batch, int64_t dim, const CpuCall& call, SoftmaxTokens* tokens) {
  tokens->count = batch.count, tokens->skip_target = batch.skip_target;
  tokens->in_bfloat16 = std::is_same_v<H, bfloat16>;
  if constexpr (std::is_same_v<Id, int32_t>) {
    tokens->targets = batch.targets;
  } else {
    int32_t* targets = call.scratch->template Take<int32_t>(batch.count);
    if (targets == nullptr) return kNoMemory;
    for (int64_t t = 0; t < batch.count; ++t) targets[t] = static_cast<int32_t>(batch.targets[t]);
    tokens->targets = targets;
  }
  if constexpr (std::is_same_v<H, float>) {
    tokens->hidden = batch.hidden;
  } else {
    float* floats = call.scratch->template Take<float>(batch.count * dim);
    if (floats == nullptr) return kNoMemory;
    Convert(batch.hidden, batch.count * dim, floats, call.parallel);
    tokens->hidden = floats;
  }
  return 0;
}

// Calls body(tokens, gradients), which takes float32, and returns what it does.
template <typename T, typename H, typename Id, typename Body>
int WithGradients(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch,
                  const SoftmaxBatchGradients<H, T>& out, const CpuCall& call, BadTarget* bad,
                  const Body& body) {
  *bad = FirstBadTarget(batch.targets, batch.count, table.classes);
  if (bad->found()) return 0;
  SoftmaxTokens tokens;
  LARGEOUT_RETURN_IF_ERROR(ToTokens(batch, table.dim, call, &tokens));
  if (out.rows != nullptr) AdviseHugePages(out.rows, table.classes * table.dim * sizeof(T));
  if constexpr (std::is_same_v<H, float>) {
    return body(tokens, SoftmaxGradients<T>{out.hidden, out.rows, out.bias});
  } else {
    const int64_t n = batch.count * table.dim;
    float* d_hidden = out.hidden == nullptr ? nullptr : call.scratch->template Take<float>(n);
    if (out.hidden != nullptr && d_hidden == nullptr) return kNoMemory;
    LARGEOUT_RETURN_IF_ERROR(body(tokens, SoftmaxGradients<T>{d_hidden, out.rows, out.bias}));
    if (d_hidden != nullptr) Convert(d_hidden, n, out.hidden, call.parallel);
    return 0;
  }
}

}  // namespace

template <>
template <typename T, typename H, typename Id>
int FullSoftmaxCpu::Terms(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch,
                          const SoftmaxTerms& terms, BadTarget* bad) {
  *bad = FirstBadTarget(batch.targets, batch.count, table.classes);
  if (bad->found()) return 0;
  SoftmaxTokens tokens;
  LARGEOUT_RETURN_IF_ERROR(ToTokens(batch, table.dim, call_, &tokens));
  return TermsOf(table, tokens, terms, call_);
}

template <>
template <typename T, typename H, typename Id>
int FullSoftmaxCpu::Gradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch, const float* lse,
                             const SoftmaxUpstream& upstream, const SoftmaxBatchGradients<H, T>& out,
                             BadTarget* bad) {
  return WithGradients(table, batch, out, call_, bad, [&](const auto& tokens, const auto& gradients) {
    return GradientOf(table, tokens, lse, upstream, gradients, call_);
  });
}

template <>
template <typename T, typename H, typename Id>
int FullSoftmaxCpu::TermsAndGradient(const SoftmaxRows<T>& table, const SoftmaxBatch<H, Id>& batch,
                                     const SoftmaxExpected& expected, int64_t scratch_bytes,
                                     const SoftmaxTerms& terms, const SoftmaxBatchGradients<H, T>& out,
                                     BadTarget* bad) {
  return WithGradients(table, batch, out, call_, bad, [&](const auto& tokens, const auto& gradients) {
    return TermsAndGradientOf(table, tokens, expected, scratch_bytes, terms, gradients, call_);
  });
}

template <>
template <typename X>
void FullSoftmaxCpu::Scale(const X* in, int64_t n, float factor, X* out) {
  call_.parallel->For(n, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) FromFloat(ToFloat(in[i]) * factor, out + i);
  });
}

template void FullSoftmaxCpu::Scale<float>(const float*, int64_t, float, float*);
template void FullSoftmaxCpu::Scale<bfloat16>(const bfloat16*, int64_t, float, bfloat16*);
#define LARGEOUT_FULL_SOFTMAX(T, H, Id)                                                              \
  template int FullSoftmaxCpu::Terms<T, H, Id>(const SoftmaxRows<T>&, const SoftmaxBatch<H, Id>&,    \
                                               const SoftmaxTerms&, BadTarget*);                     \
  template int FullSoftmaxCpu::Gradient<T, H, Id>(const SoftmaxRows<T>&, const SoftmaxBatch<H, Id>&, \
                                                  const float*, const SoftmaxUpstream&,              \
                                                  const SoftmaxBatchGradients<H, T>&, BadTarget*);   \
  template int FullSoftmaxCpu::TermsAndGradient<T, H, Id>(                                           \
      const SoftmaxRows<T>&, const SoftmaxBatch<H, Id>&, const SoftmaxExpected&, int64_t,            \
      const SoftmaxTerms&, const SoftmaxBatchGradients<H, T>&, BadTarget*);
#define LARGEOUT_FULL_SOFTMAX_OF(T, H) \
  LARGEOUT_FULL_SOFTMAX(T, H, int32_t) \
  LARGEOUT_FULL_SOFTMAX(T, H, int64_t)
LARGEOUT_FULL_SOFTMAX_OF(float, float)
LARGEOUT_FULL_SOFTMAX_OF(float, bfloat16)
LARGEOUT_FULL_SOFTMAX_OF(bfloat16, float)
LARGEOUT_FULL_SOFTMAX_OF(bfloat16, bfloat16)

}  // namespace largeout
