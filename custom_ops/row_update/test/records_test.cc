#include "row_update/records.h"

#include <sys/mman.h>
#include <unistd.h>

#include "row_update/test/records_cases.h"

namespace largeout {

LARGEOUT_RECORDS_CASES(RecordsCpu)

LARGEOUT_TEST(LayoutsCountWords) {
  const RecordLayout wide = {64, 4}, odd = {5, 2}, none = {0, 4};
  CHECK_TRUE(wide.Words() == 65 && wide.Words(UpdateRule::kSgd) == 65);
  CHECK_TRUE(wide.Words(UpdateRule::kLazyAdam) == 193 && wide.SlotAt(UpdateRule::kLazyAdam, 1) == 129);
  CHECK_TRUE(wide.Words(UpdateRule::kRowWiseAdagrad) == 66);
  CHECK_TRUE(odd.Words() == 4 && odd.Words(UpdateRule::kAdagrad) == 9 && none.Words() == 1);
}

// What is behind the mark is on a page that must not be touched.
LARGEOUT_TEST(ALookupOfMarksReadsNothingElse) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_TRUE(memory != MAP_FAILED && mprotect(static_cast<char*>(memory) + page, page, PROT_NONE) == 0);
  float* end = reinterpret_cast<float*>(static_cast<char*>(memory) + page);
  end[-1] = 7.f;
  const std::vector<int64_t> ids(100, 0);
  bool written[100] = {};
  int64_t damaged;
  BadIndex bad;
  TestCall<CpuCall> call;
  CHECK_TRUE(
      RecordsCpu(call.get())
          .Gather({0, 4}, end - 1, 1, 10, ids.data(), 100, nullptr, written, nullptr, &damaged, &bad) == 0);
  CHECK_TRUE(written[99] && damaged == -1 && bad.position == -1);
  munmap(memory, 2 * page);
}

}  // namespace largeout
