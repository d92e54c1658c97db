// SPDX-License-Identifier: Apache-2.0
// Holds the ordered lists of kernels and row functions (list.h). To add a kernel file: one line in
// MOEBIUS_KERNEL_TABLES; a unit of row functions: one line in MOEBIUS_ROW_TABLES.
#include "kernels/list.h"

#include <string_view>
#include <vector>

#include "kernels/attend.h"

// Kernels in order of priority: for one problem on one CPU, an earlier entry is preferred to a
// later one.
#define MOEBIUS_KERNEL_TABLES(X) \
  X(kArmI8mmKernels)             \
  X(kArmLimbsI8mmKernels)        \
  X(kArmBf16Kernels)             \
  X(kArmFhmKernels)              \
  X(kArmDotprodLanesKernels)     \
  X(kArmDotprodKernels)          \
  X(kArmNeonInt8Kernels)         \
  X(kArmLimbsDotprodKernels)     \
  X(kArmNeonFloatKernels)        \
  X(kArmNeonF32Kernels)          \
  X(kX86AmxInt8Kernels)          \
  X(kX86Avx512Int8Kernels)       \
  X(kX86AmxShortGroupKernels)    \
  X(kX86AmxFloatKernels)         \
  X(kX86Avx512bwInt8Kernels)     \
  X(kX86Avx512FloatKernels)      \
  X(kX86AvxVnniInt8Kernels)      \
  X(kX86Avx2Int8Kernels)         \
  X(kX86Avx2FloatKernels)        \
  X(kGenericIntKernels)          \
  X(kGenericFloatKernels)        \
  X(kReferenceKernels)

// Tables of row functions in order of priority.
#define MOEBIUS_ROW_TABLES(X) \
  X(kX86Avx512Rows)           \
  X(kX86Avx2Rows)             \
  X(kArmNeonRows)             \
  X(kGenericRows)

// Tables of attention blocks in order of priority.
#define MOEBIUS_ATTEND_TABLES(X) \
  X(kX86AmxAttends)              \
  X(kArmBf16Attends)

namespace moebius {

#define MOEBIUS_DECLARE_TABLE(table) extern const KernelTable table;
MOEBIUS_KERNEL_TABLES(MOEBIUS_DECLARE_TABLE)
#undef MOEBIUS_DECLARE_TABLE
#define MOEBIUS_DECLARE_TABLE(table) extern const RowFunctions table;
MOEBIUS_ROW_TABLES(MOEBIUS_DECLARE_TABLE)
#undef MOEBIUS_DECLARE_TABLE
#define MOEBIUS_DECLARE_TABLE(table) extern const AttendTable table;
MOEBIUS_ATTEND_TABLES(MOEBIUS_DECLARE_TABLE)
#undef MOEBIUS_DECLARE_TABLE

const char* Kernel::supports(const Problem& p) const {
  const struct {
    bool present;
    Fact fact;
    const char* reason;
  } known[] = {{p.offsets, kOffsets, "the weights have an offset per group"},
               {p.ragged, kRagged, "groups are of unequal length"},
               {p.scale_type == ScaleType::kTwoLevel, kTwoLevel, "scales are in two levels"},
               {p.code == CodeType::kLut4, kLut, "codes are indices into a table of numbers"}};
  for (const auto& [present, fact, reason] : known)
    if (present && (facts & fact) == 0) return reason;
  return limits(p);
}

std::span<const Kernel* const> kernel_list() {
  static const std::vector<const Kernel*> list = [] {
    std::vector<const Kernel*> all;
    for (const KernelTable* table : {
#define MOEBIUS_TABLE_ADDRESS(table) &table,
             MOEBIUS_KERNEL_TABLES(MOEBIUS_TABLE_ADDRESS)
#undef MOEBIUS_TABLE_ADDRESS
         })
      for (size_t i = 0; i < table->count; ++i) all.push_back(&table->kernels[i]);
    return all;
  }();
  return list;
}

std::span<const RowFunctions* const> row_function_list() {
#define MOEBIUS_TABLE_ADDRESS(table) &table,
  static constexpr const RowFunctions* kList[] = {MOEBIUS_ROW_TABLES(MOEBIUS_TABLE_ADDRESS)};
#undef MOEBIUS_TABLE_ADDRESS
  return kList;
}

const AttendKernel* attend_kernel(const Kernel& kernel, const Problem& keys,
                                  const Problem& values) {
#define MOEBIUS_TABLE_ADDRESS(table) &table,
  for (const AttendTable* table : {MOEBIUS_ATTEND_TABLES(MOEBIUS_TABLE_ADDRESS)})
#undef MOEBIUS_TABLE_ADDRESS
    for (const AttendKernel& a : std::span(table->kernels, table->count))
      if (a.run != nullptr && std::string_view(a.name) == kernel.name &&
          std::string_view(a.codec) == kernel.codec && a.supports(keys, values))
        return &a;
  return nullptr;
}

const Kernel& reference_kernel() { return kReferenceKernels.kernels[0]; }

}  // namespace moebius
