// The CUDA twin against the CPU kernels, which row_update_test.cc holds against the formulas. Skips (77)
// without a GPU.
#include <algorithm>
#include <vector>

#include "common/test/check.h"
#include "row_update/cuda/row_update_cuda.h"

namespace largeout {
namespace {

template <typename T>
class Device {
 public:
  explicit Device(const std::vector<T>& host) : size_(host.size()) {
    Check(cudaMalloc(&data_, std::max<size_t>(1, size_) * sizeof(T)));
    Check(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { cudaFree(data_); }
  T* get() { return data_; }
  std::vector<T> Host() const {
    std::vector<T> host(size_);
    Check(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  static void Check(cudaError_t error) { CHECK_TRUE(error == cudaSuccess); }

 private:
  size_t size_;
  T* data_ = nullptr;
};

template <typename T>
std::vector<T> Make(int64_t n, Random* random, float offset) {
  std::vector<T> x(n);
  for (T& v : x) FromFloat(random->Normalish() + offset, &v);
  return x;
}

std::vector<float> HyperOf(UpdateRule rule) {
  if (rule == UpdateRule::kFtrl) return {0.1f, 0.01f, -0.5f, 0.05f, 0.1f, 0.01f};
  return {0.1f, 0.01f, 0.1f, 0.01f, 1e-3f};
}

template <typename T, typename G, typename Id>
void CheckCase(UpdateRule rule, int64_t rows, int64_t dim, int64_t n, bool increasing) {
  const UpdateRuleInfo& info = kUpdateRuleInfo[static_cast<int>(rule)];
  Random random(static_cast<uint64_t>(rows + dim * 100 + n));
  std::vector<T> table = Make<T>(rows * dim, &random, 0.f);
  const int64_t slot_size = info.slot_per_row ? rows : rows * dim;
  std::vector<float> slot0 = Make<float>(slot_size, &random, 3.f),
                     slot1 = Make<float>(slot_size, &random, 3.f);
  std::vector<Id> ids(n);
  for (Id& id : ids) id = static_cast<Id>(random.Below(rows));
  if (increasing) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    n = static_cast<int64_t>(ids.size());
  }
  const std::vector<G> values = Make<G>(n * dim, &random, 0.f);
  const std::vector<float> hyper = HyperOf(rule);

  Device<T> gpu_table(table);
  Device<float> gpu0(slot0), gpu1(slot1), gpu_hyper(hyper);
  Device<Id> gpu_ids(ids);
  Device<G> gpu_values(values);
  float* gpu_slots[] = {gpu0.get(), gpu1.get()};
  int error = 0;
  const size_t bytes = RowUpdateWorkspaceCuda(n, sizeof(Id), &error);
  CHECK_TRUE(error == 0);
  Device<char> workspace{std::vector<char>(bytes)};
  BadIndex bad;
  CHECK_TRUE(RowUpdateCuda(rule, gpu_table.get(), rows, dim, gpu_slots, gpu_ids.get(), n, gpu_values.get(),
                           gpu_hyper.get(), workspace.get(), bytes, nullptr, &bad) == 0);
  CHECK_TRUE(bad.position == -1 && cudaDeviceSynchronize() == cudaSuccess);

  SerialParallel serial;
  float* slots[] = {slot0.data(), slot1.data()};
  RowUpdate(rule, table.data(), rows, dim, slots, ids.data(), n, values.data(), hyper.data(), &serial);
  const std::vector<T> got = gpu_table.Host();
  const std::vector<float> got0 = gpu0.Host(), got1 = gpu1.Host();
  // The GPU fuses multiply-adds; a bfloat16 may then round to its neighbour.
  for (int64_t i = 0; i < rows * dim; ++i)
    CHECK_CLOSE(ToFloat(got[i]), ToFloat(table[i]), sizeof(T) == 2 ? 8e-3 : 2e-5);
  for (int64_t i = 0; i < slot_size; ++i) {
    CHECK_CLOSE(got0[i], slot0[i], 2e-5);
    CHECK_CLOSE(got1[i], slot1[i], 2e-5);
  }
}

}  // namespace

LARGEOUT_TEST(EveryRuleEqualsTheCpu) {
  for (int rule = 0; rule < kUpdateRules; ++rule) {
    for (int64_t dim : {1, 3, 4, 17, 64, 128, 304}) {
      for (bool increasing : {false, true}) {
        CheckCase<float, float, int64_t>(static_cast<UpdateRule>(rule), 507, dim, 252, increasing);
        CheckCase<float, bfloat16, int32_t>(static_cast<UpdateRule>(rule), 123, dim, 252, increasing);
        CheckCase<bfloat16, float, int32_t>(static_cast<UpdateRule>(rule), 507, dim, 123, increasing);
        CheckCase<bfloat16, bfloat16, int64_t>(static_cast<UpdateRule>(rule), 507, dim, 123, increasing);
      }
    }
    CheckCase<float, float, int32_t>(static_cast<UpdateRule>(rule), 1, 64, 300, false);
  }
}

LARGEOUT_TEST(ABadIndexChangesNothing) {
  for (int64_t wrong : {-1, 5}) {
    Device<float> table(std::vector<float>(15, 1.f)), values(std::vector<float>(9, 1.f)), hyper({0.1f, 0.f});
    Device<int64_t> ids({4, wrong, 0});
    int error = 0;
    const size_t bytes = RowUpdateWorkspaceCuda(3, 8, &error);
    Device<char> workspace{std::vector<char>(bytes)};
    BadIndex bad;
    error = RowUpdateCuda<float, float, int64_t>(UpdateRule::kSgd, table.get(), 5, 3, nullptr, ids.get(), 3,
                                                 values.get(), hyper.get(), workspace.get(), bytes, nullptr,
                                                 &bad);
    CHECK_TRUE(error == 0 && bad.position == 1 && bad.index == wrong);
    for (float x : table.Host()) CHECK_TRUE(x == 1.f);
  }
}

}  // namespace largeout

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  return largeout::TestMain();
}
