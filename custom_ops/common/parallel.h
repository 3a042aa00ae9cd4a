// The threads of kernels: they are handed a Parallel and never start a thread. In TensorFlow it is the pool
// of the op's context (common/op/tf_op.h); tests and benches use ThreadParallel.
//
// Results must not depend on the number of threads: split the *outputs*, or reduce in a fixed order.
#ifndef LARGEOUT_COMMON_PARALLEL_H_
#define LARGEOUT_COMMON_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace largeout {

class Parallel {
 public:
  using Body = std::function<void(int64_t begin, int64_t end)>;
  virtual ~Parallel() = default;
  virtual int threads() const = 0;
  // Calls body on disjoint ranges that cover [0, n); returns when all are done. `cost` is the estimated time of one unit
  // in CPU cycles: it decides how small a range is worth a thread. The cut points are unspecified.
  virtual void For(int64_t n, int64_t cost, const Body& body) = 0;
};

class SerialParallel final : public Parallel {
 public:
  int threads() const override { return 1; }
  void For(int64_t n, int64_t, const Body& body) override {
    if (n > 0) body(0, n);
  }
};

// Owns its threads. For tests and benches.
class ThreadParallel final : public Parallel {
 public:
  explicit ThreadParallel(int threads);
  ~ThreadParallel() override;
  int threads() const override;
  void For(int64_t n, int64_t cost, const Body& body) override;

 private:
  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace largeout

#endif  // LARGEOUT_COMMON_PARALLEL_H_
