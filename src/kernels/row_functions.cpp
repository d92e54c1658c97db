// SPDX-License-Identifier: Apache-2.0
// Chooses the table of row functions: the first of the list (list.cpp) whose needs the CPU meets.
#include "kernels/row_functions.h"

#include "kernels/list.h"

namespace moebius {

const RowFunctions& choose_row_functions(const Cpu& cpu) {
  const auto list = row_function_list();
  for (const RowFunctions* f : list) {
    if (cpu.here && f->load == nullptr) continue;  // this build leaves the table out
    if (f->arch == Arch::kOther || (f->arch == cpu.arch && cpu.has(f->needs))) return *f;
  }
  return *list.back();
}

const RowFunctions& row_functions() noexcept {
  static const RowFunctions& chosen = choose_row_functions(host_cpu());
  return chosen;
}

}  // namespace moebius
