// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library. what() names the file, the tensor, what was found and what
// was expected; place() returns these names one by one, as far as they are known.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>

namespace moebius {

// Names what an Error is about. An empty field is not known.
struct ErrorPlace {
  std::string kind;  // file, config, unsupported, argument, memory or state
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
  // Fills the empty fields of place() from `more`. A function that lets the exception pass calls
  // add() with what it knows, such as the name of the file.
  void add(const ErrorPlace& more) {
    auto all = std::make_shared<ErrorPlace>(place());
    for (std::string ErrorPlace::*name : {&ErrorPlace::kind, &ErrorPlace::file, &ErrorPlace::tensor,
                                          &ErrorPlace::module, &ErrorPlace::field})
      if (((*all).*name).empty()) (*all).*name = more.*name;
    place_ = std::move(all);
  }

 private:
  std::shared_ptr<const ErrorPlace> place_;  // shared, because copying an exception must not throw
};

}  // namespace moebius
