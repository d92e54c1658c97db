// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library. The message names the file, the tensor, what was found,
// what was expected.
#pragma once
#include <stdexcept>

namespace moebius {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace moebius
