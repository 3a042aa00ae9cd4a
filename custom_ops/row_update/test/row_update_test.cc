#include "row_update/row_update.h"

#include "row_update/test/row_update_cases.h"

namespace largeout {

LARGEOUT_ROW_UPDATE_CASES(RowUpdateCpu)

LARGEOUT_TEST(RulesAreFoundByName) {
  UpdateRule rule;
  CHECK_TRUE(FindUpdateRule("row_wise_adagrad", &rule) && rule == UpdateRule::kRowWiseAdagrad);
  CHECK_TRUE(FindUpdateRule("ftrl", &rule) && rule == UpdateRule::kFtrl);
  CHECK_TRUE(!FindUpdateRule("adam", &rule));
}

}  // namespace largeout
