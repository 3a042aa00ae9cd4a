#include "common/op/mapped_tensor_op.h"

#include <string>

#include "common/mapped_file.h"
#include "common/op/table_sizes_op.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace largeout {
namespace {

class MappedBuffer final : public tensorflow::TensorBuffer {
 public:
  MappedBuffer(void* data, size_t bytes, FileAccess access)
      : TensorBuffer(data), bytes_(bytes), access_(access) {}
  ~MappedBuffer() override { UnmapFile(data(), bytes_); }
  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  FileAccess access() const { return access_; }

 private:
  const size_t bytes_;
  const FileAccess access_;
};

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
  auto* buffer = new MappedBuffer(data, bytes, read_only ? FileAccess::kRead : FileAccess::kReadAndWrite);
  *table = tensorflow::Tensor(dtype, shape, buffer);
  buffer->Unref();  // the tensor has a reference of its own
  return absl::OkStatus();
}

FileAccess FileAccessOf(const tensorflow::Tensor& tensor) {
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return FileAccess::kNoFile;
  const auto* mapped =
      dynamic_cast<const MappedBuffer*>(const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer());
  return mapped == nullptr ? FileAccess::kNoFile : mapped->access();
}

}  // namespace largeout
