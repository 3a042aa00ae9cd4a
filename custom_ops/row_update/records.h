// Records: a row of a table and its optimizer slots side by side, so that a row that is not in memory is
// brought by one read of a file. A table of records is float32 [rows, words]. One record, in float32 words:
//
//   0                       the mark: all bits 0 where the row was never written, else the record's digest
//   1 .. 1 + RowWords       the row: `dim` values of T (two bfloat16 a word; an unused half is anything)
//   then the slots          in the order of row_update.h: `dim` float32 each, one where the rule has a slot
//                           per row
//   then                    anything
//
// Words that may hold bfloat16 are copied as bytes: as a float32 they could be a NaN that arithmetic alters.
//
// What is written gets its digest, and what is read for the first time is compared with it: damage on the
// disk, half a write and the record of another row are noticed before they are trained on. One damage in 2^32
// is not. A mark of 1.0 (kPlainMark) is that of a record without a digest, as version 0.1 wrote them: it gets
// one when it is written.
//
// Bounds of the speed. Gather: n * (RowBytes + a cache line) bytes, and for rows far apart n misses of
// the cache and of the TLB; n * 4 * words bytes where records are compared with their marks. Update: those of
// RowUpdate; the digest reads what is in the first-level cache.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_H_

#include <cstdint>

#include "row_update/row_update.h"

namespace largeout {

// The layout of a record of a row of `dim` values, `value_bytes` (4 or 2) bytes each.
struct RecordLayout {
  static constexpr int64_t kMarkWords = 1;

  int64_t dim;
  int64_t value_bytes;

  int64_t RowBytes() const { return dim * value_bytes; }
  int64_t RowWords() const { return (RowBytes() + 3) / 4; }
  // Where slot k begins.
  int64_t SlotAt(UpdateRule rule, int k) const { return kMarkWords + RowWords() + k * SlotWords(rule); }
  int64_t SlotWords(UpdateRule rule) const {
    return kUpdateRuleInfo[static_cast<int>(rule)].slot_per_row ? 1 : dim;
  }
  // The least words of a record, without and with the slots of a rule.
  int64_t Words() const { return kMarkWords + RowWords(); }
  int64_t Words(UpdateRule rule) const { return SlotAt(rule, kUpdateRuleInfo[static_cast<int>(rule)].slots); }
};

constexpr uint32_t kPlainMark = 0x3f800000u;  // 1.0f

// The mark of a record that is written: the digest of the words behind it, as unsigned integers w[0 .. m), and
// of its row. With k(j) = (j + 1) * 0x9e3779b1 and w[m] = 0,
//
//   s = row * 0xc2b2ae3d27d4eb4f + the sum over even j of (w[j] + k(j)) * (w[j + 1] + k(j + 1)),
//
// where the terms in brackets are taken modulo 2^32 and all else modulo 2^64, the mark is the upper half of
// (s ^ (s >> 29)) * 0x9e3779b185ebca87. Where that is 0 or kPlainMark, its first bit is flipped. (The sum is
// NH of J. Black et al., UMAC: Fast and Secure Message Authentication, CRYPTO 1999, section 4.)
uint32_t RecordMark(const float* record, int64_t words, int64_t row);

// Whether the marks of all of ids[0 .. n) that are in [0, rows) are set. checked, *damaged: as in
// RecordsCpu::Gather.
template <typename Id>
bool AllWritten(const float* records, int64_t rows, int64_t words, const Id* ids, int64_t n,
                uint64_t* checked, int64_t* damaged, Parallel* parallel);

// Records on a CPU; there is none on a GPU: the memory of files is the host's. Methods return 0. If *bad
// holds the position of an index outside [0, rows), nothing was written.
class RecordsCpu {
 public:
  using Call = CpuCall;
  explicit RecordsCpu(const Call& call) : call_(call) {}

  // RowUpdate, to the bit, on the rows and slots inside `records` [rows, words]. A mark that is set becomes
  // that of the new record. T is the type of the row. words >= RecordLayout::Words(rule).
  template <typename T, typename G, typename Id>
  int Update(UpdateRule rule, float* records, int64_t rows, int64_t words, int64_t dim, const Id* indices,
             int64_t n, const G* values, const StepNumbers& numbers, BadIndex* bad);

  // Whole records into the rows `indices` of `records` [rows, words], and their marks. contents [n, words -
  // 1]: what is behind the marks. Of a row that is named several times the last record stays.
  template <typename Id>
  int Write(float* records, int64_t rows, int64_t words, const Id* indices, int64_t n, const float* contents,
            BadIndex* bad);

  // The rows `indices` of `records` [rows, words], RowBytes each, into out, and whether their marks are set
  // into written [n]. Rows of 0 bytes: marks alone are read.
  //
  // checked: a bit for each row, set where its record was compared with its mark; null: every record is.
  // *damaged: the position of the first index whose record is not the one that was written, or -1.
  template <typename Id>
  int Gather(const RecordLayout& layout, const float* records, int64_t rows, int64_t words, const Id* indices,
             int64_t n, void* out, bool* written, uint64_t* checked, int64_t* damaged, BadIndex* bad);

 private:
  const Call call_;
};

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_H_
