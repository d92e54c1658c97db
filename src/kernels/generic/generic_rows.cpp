// SPDX-License-Identifier: Apache-2.0
// Implements the row functions for every CPU: the scalar definitions in plain loops. It is the last
// entry of the list.
#include "kernels/isa_products.h"
#include "kernels/isa_quantize.h"
#include "kernels/isa_search.h"

namespace moebius {
namespace {

struct Generic : RowLoops<Generic, 4>,
                 QuantizeLoops<Generic>,
                 ScanLoops<Generic, 4>,
                 ProductLoops<Generic, 4>,
                 SearchLoops<Generic, 4> {};

}  // namespace

extern const RowFunctions kGenericRows;
const RowFunctions kGenericRows = row_table<Generic>("generic", Arch::kOther, 0);

}  // namespace moebius
