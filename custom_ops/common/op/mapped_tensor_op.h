// Tensors whose memory is a file.
#ifndef LARGEOUT_COMMON_MAPPED_TENSOR_OP_H_
#define LARGEOUT_COMMON_MAPPED_TENSOR_OP_H_

#include <string>

#include "common/op/tf_op.h"

namespace largeout {

// The mapping of a file as the memory of a tensor: it stays as long as a tensor uses it.
//
// path: scalar, string. sizes: int64 [rank], the shape; an existing file must have just its bytes. A tensor
// without elements has no file.
absl::Status MappedTensor(const tensorflow::Tensor& path, const tensorflow::Tensor& sizes,
                          tensorflow::DataType dtype, bool read_only, tensorflow::Tensor* table);

enum class FileAccess { kNoFile, kRead, kReadAndWrite };

// Whether the memory of `tensor` is a file, and what may be done there.
FileAccess FileAccessOf(const tensorflow::Tensor& tensor);

// The path of that file; empty where there is none.
std::string FileOf(const tensorflow::Tensor& tensor);

// A bit for each row of a tensor whose memory is a file, all 0 at first, for who checks rows that come from the
// file; null where the memory is not a file's. They take up memory as they are set.
uint64_t* CheckedRows(const tensorflow::Tensor& tensor);

}  // namespace largeout

#endif  // LARGEOUT_COMMON_MAPPED_TENSOR_OP_H_
