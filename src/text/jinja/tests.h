// SPDX-License-Identifier: Apache-2.0
// Declares Jinja tests, the words after "is". names.cpp registers them.
#pragma once
#include "text/jinja/names.h"

namespace moebius::jinja {

using Predicate = bool(const Value&);
Predicate is_boolean, is_callable, is_defined, is_even, is_false, is_float, is_whole, is_iterable,
    is_mapping, is_nothing, is_any_number, is_odd, is_a_sequence, is_a_string, is_true,
    is_not_defined;
Builtin test_divisible, test_case, test_same;

}  // namespace moebius::jinja
