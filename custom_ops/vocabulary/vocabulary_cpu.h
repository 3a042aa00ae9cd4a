// A vocabulary on a CPU, as its ops and its tests call it. There is no VocabularyGpu: see vocabulary.h.
#ifndef LARGEOUT_VOCABULARY_VOCABULARY_CPU_H_
#define LARGEOUT_VOCABULARY_VOCABULARY_CPU_H_

#include "common/scratch.h"
#include "vocabulary/vocabulary.h"

namespace largeout {

class VocabularyCpu {
 public:
  using Call = CpuCall;
  explicit VocabularyCpu(const CpuCall& call) : call_(call) {}

  // As VocabularyFind.
  int Find(const int64_t* keys, int64_t capacity, const int64_t* ids, int64_t n, int64_t* rows) {
    VocabularyFind(keys, capacity, ids, n, rows, call_.parallel);
    return 0;
  }

  // As VocabularyUpdate.
  int Update(const VocabularyView& vocabulary, const VocabularyRules& rules, const int64_t* ids, int64_t n,
             int64_t* rows, int64_t* replaced, int64_t* num_replaced) {
    return VocabularyUpdate(vocabulary, rules, ids, n, rows, replaced, num_replaced, call_);
  }

 private:
  const CpuCall call_;
};

}  // namespace largeout

#endif  // LARGEOUT_VOCABULARY_VOCABULARY_CPU_H_
