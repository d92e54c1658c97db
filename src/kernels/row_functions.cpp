// SPDX-License-Identifier: Apache-2.0
// Which table of row functions runs: the first of the list (list.cpp) whose needs the CPU has.
#include "kernels/row_functions.h"

#include "base/error.h"
#include "kernels/list.h"

namespace moebius {

const RowFunctions& choose_row_functions(const Cpu& cpu) {
  const auto list = row_function_list();
  for (const RowFunctions* f : list)
    if (f->arch == Arch::kOther || (f->arch == cpu.arch && cpu.has(f->needs))) return *f;
  return *list.back();
}

const RowFunctions& row_functions() noexcept {
  static const RowFunctions& chosen = []() -> const RowFunctions& {
    try {
      return choose_row_functions(host_cpu());
    } catch (const Error&) {  // MOEBIUS_CPU is wrong: whoever chooses kernels reports it
      return choose_row_functions(Cpu{});
    }
  }();
  return chosen;
}

}  // namespace moebius
