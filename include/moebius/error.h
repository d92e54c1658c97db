// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library. The message names the file, the tensor, what was found,
// what was expected; place() has the names one by one, as far as they are known.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>

namespace moebius {

// Empty: not known.
struct ErrorPlace {
  std::string kind;  // file, config, unsupported, argument, memory, state
  std::string file, tensor, module, field;
};

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  Error(const std::string& what, const ErrorPlace& place) : std::runtime_error(what) { add(place); }

  const ErrorPlace& place() const noexcept {
    static const ErrorPlace kNowhere;
    return place_ == nullptr ? kNowhere : *place_;
  }
  // A frame that knows more; what is already known stays.
  void add(const ErrorPlace& more) {
    auto all = std::make_shared<ErrorPlace>(place());
    for (std::string ErrorPlace::*name : {&ErrorPlace::kind, &ErrorPlace::file, &ErrorPlace::tensor,
                                          &ErrorPlace::module, &ErrorPlace::field})
      if (((*all).*name).empty()) (*all).*name = more.*name;
    place_ = std::move(all);
  }

 private:
  std::shared_ptr<const ErrorPlace> place_;  // shared: copies of exceptions must not throw
};

}  // namespace moebius
