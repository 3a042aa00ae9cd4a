#include "cuda_emulator/warp/tensor_cores.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "cuda_emulator/block.h"
#include "cuda_emulator/memory.h"
#include "cuda_emulator/report.h"

namespace largeout {
namespace emulation {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
float Bfloat16(uint32_t word, int half) { return FromBits(half == 0 ? word << 16 : word & 0xffff0000u); }

// ldmatrix.m8n8.x4: lane l names row l % 8 of block l / 8; register i of a lane is row lane / 4 of block i,
// columns 2 * (lane % 4) and the next.
void FinishLoad(Thread* const (&at)[32]) {
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t out[4];
    for (int i = 0; i < 4; ++i) {
      uint16_t pair[2];
      for (int c = 0; c < 2; ++c) {
        int row = lane / 4, column = lane % 4 * 2 + c;
        if (at[lane]->wait.argument != 0) std::swap(row, column);
        std::memcpy(&pair[c], static_cast<const char*>(at[i * 8 + row]->wait.in) + column * 2, 2);
      }
      out[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
    std::memcpy(at[lane]->wait.out, out, sizeof(out));
  }
}

// To float32, towards zero: a card cuts its sums, and where many are added up that shows.
float Cut(double sum) {
  const float near = static_cast<float>(sum);
  return std::fabs(static_cast<double>(near)) > std::fabs(sum) && std::isfinite(sum)
             ? std::nextafter(near, 0.f)
             : near;
}

// c (16 x 8) += a (16 x kDepth) * b (kDepth x 8), of m16n8k16 bfloat16 and m16n8k8 tf32. Within one
// instruction sums are float64: a card keeps fewer bits of them.
template <int kDepth>
void FinishMultiply(Thread* const (&at)[32]) {
  float a[16][kDepth], b[kDepth][8];
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t in[6];  // a[4], b[2]
    std::memcpy(in, at[lane]->wait.in, sizeof(in));
    const int group = lane / 4, place = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, k = i / 2 * (kDepth / 2);
      if constexpr (kDepth == 16) {
        for (int h = 0; h < 2; ++h) a[row][k + place * 2 + h] = Bfloat16(in[i], h);
      } else {
        a[row][k + place] = FromBits(in[i] & 0xffffe000u);
      }
    }
    for (int i = 0; i < 2; ++i) {
      if constexpr (kDepth == 16) {
        for (int h = 0; h < 2; ++h) b[i * 8 + place * 2 + h][group] = Bfloat16(in[4 + i], h);
      } else {
        b[i * 4 + place][group] = FromBits(in[4 + i] & 0xffffe000u);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float c[4];
    std::memcpy(c, at[lane]->wait.out, sizeof(c));
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = c[i];
      for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      c[i] = Cut(sum);
    }
    std::memcpy(at[lane]->wait.out, c, sizeof(c));
  }
}

void Aligned(const void* data, int size, const void* code) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  if (address % size != 0)
    ReportAndStop("misaligned: " + std::to_string(size) + " bytes at " + Place(address), code);
}

}  // namespace

void FinishTensorCores(Thread* const (&at)[32]) {
  Meeting meeting = Meeting::kNone;
  for (const Thread* t : at) {
    if (t == nullptr)
      return ReportAndStop("divergence: a tensor core instruction without a whole warp", nullptr);
    meeting = t->wait.meeting;
  }
  switch (meeting) {
    case Meeting::kLoadBlocks:
      return FinishLoad(at);
    case Meeting::kMultiply:
      return FinishMultiply<16>(at);
    default:
      return FinishMultiply<8>(at);
  }
}

void LoadBlocks(const void* row, uint32_t* r, bool transpose, const char* file, int line) {
  const void* code = __builtin_return_address(0);
  Aligned(row, 16, code);
  CheckAccess(row, 16, Access::kRead, code);
  Wait& wait = Waiting(Meeting::kLoadBlocks, 0xffffffffu, file, line);
  wait.in = row, wait.out = r, wait.argument = transpose;
  Meet();
}

void Multiply(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, bool tf32, const char* file, int line) {
  const uint32_t in[6] = {a[0], a[1], a[2], a[3], b0, b1};
  Wait& wait = Waiting(tf32 ? Meeting::kMultiplyTf32 : Meeting::kMultiply, 0xffffffffu, file, line);
  wait.in = in, wait.out = c;
  Meet();
}

void BeginSharedCopy(void* shared, const void* global, int bytes, int size) {
  const void* code = __builtin_return_address(0);
  Aligned(shared, size, code);
  Aligned(global, size, code);
  if (bytes > 0) CheckAccess(global, bytes, Access::kRead, code);
  running.thread->copies.push_back({shared, global, bytes, size, running.thread->copy_group});
}

void CommitCopies() { ++running.thread->copy_group; }

void FinishCopies(int left) {
  const void* code = __builtin_return_address(0);
  Thread* thread = running.thread;
  size_t kept = 0;
  for (const Copy& copy : thread->copies) {
    if (copy.group >= thread->copy_group - left) {
      thread->copies[kept++] = copy;
      continue;
    }
    CheckAccess(copy.to, copy.size, Access::kWrite, code);
    std::memcpy(copy.to, copy.from, copy.bytes);
    std::memset(static_cast<char*>(copy.to) + copy.bytes, 0, copy.size - copy.bytes);
  }
  thread->copies.resize(kept);
}

}  // namespace emulation
}  // namespace largeout
