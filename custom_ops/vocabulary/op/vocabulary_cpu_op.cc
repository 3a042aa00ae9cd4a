// The CPU kernels of VocabularyFind and VocabularyUpdate. There are no others: see vocabulary.h.
#include "vocabulary/op/vocabulary_kernel_op.h"
#include "vocabulary/vocabulary.h"

namespace largeout {
namespace {

REGISTER_KERNEL_BUILDER(Name("Largeout>VocabularyFind").Device(tensorflow::DEVICE_CPU),
                        VocabularyFindOp<VocabularyCpu>);
REGISTER_KERNEL_BUILDER(Name("Largeout>VocabularyUpdate").Device(tensorflow::DEVICE_CPU),
                        VocabularyUpdateOp<VocabularyCpu>);

}  // namespace
}  // namespace largeout
