#include "embedding/embedding.h"

#include "embedding/test/embedding_cases.h"

namespace largeout {

LARGEOUT_EMBEDDING_CASES(EmbeddingCpu)

LARGEOUT_TEST(FindsTheFirstBadId) {
  std::vector<int64_t> ids(10000, 6);
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 7) == -1);
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 6) == 0);
  ids[9999] = -1;
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 7) == 9999);
  ids[5000] = int64_t{1} << 40;
  CHECK_TRUE(FirstBadId(ids.data(), 10000, 7) == 5000);
  CHECK_TRUE(FirstBadId(ids.data(), 0, 7) == -1);
}

LARGEOUT_TEST(FindsTheFirstBadSplit) {
  const auto bad = [](std::vector<int64_t> splits, int64_t n) {
    return FirstBadSplit(splits.data(), static_cast<int64_t>(splits.size()), n);
  };
  CHECK_TRUE(bad({0, 2, 2, 5}, 5) == -1 && bad({0}, 0) == -1);
  CHECK_TRUE(bad({1, 2, 5}, 5) == 0 && bad({-1, 5}, 5) == 0);
  CHECK_TRUE(bad({0, 3, 2, 5}, 5) == 2);
  CHECK_TRUE(bad({0, 6, 5}, 5) == 1);
  CHECK_TRUE(bad({0, 2, 4}, 5) == 2 && bad({0}, 3) == 0);
}

}  // namespace largeout
