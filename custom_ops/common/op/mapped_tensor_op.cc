#include "common/op/mapped_tensor_op.h"

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "common/mapped_file.h"
#include "common/op/table_sizes_op.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace largeout {
namespace {

class MappedBuffer final : public tensorflow::TensorBuffer {
 public:
  MappedBuffer(void* data, size_t bytes, FileAccess access, std::string path)
      : TensorBuffer(data), bytes_(bytes), access_(access), path_(std::move(path)) {}
  ~MappedBuffer() override {
    UnmapFile(data(), bytes_);
    std::free(checked_);
  }
  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  FileAccess access() const { return access_; }
  const std::string& path() const { return path_; }
  uint64_t* Checked(int64_t rows) const {
    std::call_once(made_, [&] {  // null where there is no memory: every row is checked then
      checked_ = static_cast<uint64_t*>(std::calloc(rows / 64 + 1, sizeof(uint64_t)));
    });
    return checked_;
  }

 private:
  const size_t bytes_;
  const FileAccess access_;
  const std::string path_;
  mutable std::once_flag made_;
  mutable uint64_t* checked_ = nullptr;
};

// Null where the memory of `tensor` is no file.
const MappedBuffer* MappedBufferOf(const tensorflow::Tensor& tensor) {
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return nullptr;
  return dynamic_cast<const MappedBuffer*>(const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer());
}

}  // namespace

absl::Status MappedTensor(const tensorflow::Tensor& path, const tensorflow::Tensor& sizes,
                          tensorflow::DataType dtype, bool read_only, tensorflow::Tensor* table) {
  if (!tensorflow::TensorShapeUtils::IsScalar(path.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("`path` must be a scalar. Received: shape ", path.shape().DebugString()));
  }
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(ShapeOfSizes(sizes, dtype, &shape));
  if (shape.num_elements() == 0) {
    *table = tensorflow::Tensor(dtype, shape);
    return absl::OkStatus();
  }
  const std::string name(path.scalar<tensorflow::tstring>()());
  const size_t bytes = static_cast<size_t>(shape.num_elements() * tensorflow::DataTypeSize(dtype));
  std::string error;
  void* data = MapFile(name, bytes, read_only, &error);
  if (data == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("`path` must be a file for a table of shape ",
                                                      shape.DebugString(), ". Received: ", name, "; ",
                                                      error));
  }
  auto* buffer = new MappedBuffer(data, bytes, read_only ? FileAccess::kRead : FileAccess::kReadAndWrite, name);
  *table = tensorflow::Tensor(dtype, shape, buffer);
  buffer->Unref();  // the tensor has its own reference
  return absl::OkStatus();
}

FileAccess FileAccessOf(const tensorflow::Tensor& tensor) {
  const MappedBuffer* mapped = MappedBufferOf(tensor);
  return mapped == nullptr ? FileAccess::kNoFile : mapped->access();
}

std::string FileOf(const tensorflow::Tensor& tensor) {
  const MappedBuffer* mapped = MappedBufferOf(tensor);
  return mapped == nullptr ? std::string() : mapped->path();
}

uint64_t* CheckedRows(const tensorflow::Tensor& tensor) {
  const MappedBuffer* mapped = MappedBufferOf(tensor);
  return mapped == nullptr ? nullptr : mapped->Checked(tensor.dim_size(0));
}

}  // namespace largeout
