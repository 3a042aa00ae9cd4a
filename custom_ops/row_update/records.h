// Records: a row of a table and its optimizer slots side by side, so that a row that is not in memory is
// brought by one read of a file. A table of records is float32 [rows, words]. One record, in float32 words:
//
//   0                       the mark: all bits 0 where the row was never written, else 1.0
//   1 .. 1 + RowWords       the row: `dim` values of T (two bfloat16 a word; an unused half is anything)
//   then the slots          in the order of row_update.h: `dim` float32 each, one where the rule has a slot
//                           per row
//   then                    anything
//
// Words that may hold bfloat16 are copied as bytes: as a float32 they could be a NaN that arithmetic alters.
//
// Bounds of the speed. GatherRecords: n * (RowBytes + a cache line) bytes, and for rows far apart n misses of
// the cache and of the TLB. RecordUpdate: those of RowUpdate.
#ifndef LARGEOUT_ROW_UPDATE_RECORDS_H_
#define LARGEOUT_ROW_UPDATE_RECORDS_H_

#include <cstdint>

#include "row_update/row_update.h"

namespace largeout {

// What a record of rows of `dim` values has, `value_bytes` (4 or 2) bytes each.
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

// RowUpdate, to the bit, on the rows and slots inside `records` [rows, words]; marks stay as they are. T is
// the type of the row. words >= RecordLayout::Words(rule).
template <typename T, typename G, typename Id>
int64_t RecordUpdate(UpdateRule rule, float* records, int64_t rows, int64_t words, int64_t dim,
                     const Id* indices, int64_t n, const G* values, const float* hyper, Parallel* parallel);

// The rows `indices` of `records` [rows, words], RowBytes each, into out, and whether their marks are set
// into written [n]. Slots are not read. Returns -1, or the position of the first index outside [0, rows):
// nothing is written to out then.
template <typename Id>
int64_t GatherRecords(const RecordLayout& layout, const float* records, int64_t rows, int64_t words,
                      const Id* indices, int64_t n, void* out, bool* written, Parallel* parallel);

// Whether the marks of all of ids[0 .. n) that are in [0, rows) are set.
template <typename Id>
bool AllWritten(const float* records, int64_t rows, int64_t words, const Id* ids, int64_t n, Parallel* parallel);

}  // namespace largeout

#endif  // LARGEOUT_ROW_UPDATE_RECORDS_H_
