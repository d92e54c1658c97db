// SPDX-License-Identifier: Apache-2.0
#include "report/modules.h"

#include "base/error.h"

namespace moebius {

std::string payload_problem(const Checkpoint& checkpoint, const Module& m, LoadBuffer& buffer,
                            QuantMatrix* matrix) {
  try {
    buffer.reset();
    if (has_matrix(m)) {
      const QuantMatrix w =
          reader_for(m.plan.scheme.format).load(m.plan, checkpoint.store(), buffer);
      if (matrix != nullptr) *matrix = w;
      load_bias(m.plan, checkpoint.store());
    } else {
      for (const TensorRef& ref : m.plan.tensors.by_role)
        // Integer tables (experts by token id, multipliers of hashes) are checked where they are
        // used.
        if (ref && ref.info->dtype != DType::kI64) read_floats(checkpoint.store(), *ref.info);
    }
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace moebius
