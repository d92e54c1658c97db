// SPDX-License-Identifier: Apache-2.0
// moebius-quantize.json: in an unfinished folder what was made so far and of what, so that --resume
// gives the bytes of a run that was never stopped; in a finished one how it was made.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/tensor_store.h"

namespace moebius {

inline constexpr std::string_view kJournalName = "moebius-quantize.json";

struct FinishedShard {
  std::string name, hash;
  uint64_t bytes = 0;
};

// The first units of a file that is being made.
struct BegunShard {
  std::string name, hash;
  size_t units = 0;
};

// Files of a source: names, sizes, times and a hash of their headers.
Json source_facts(const std::string& folder, const TensorStore& store);

struct Journal {
  Json source, options;
  std::vector<FinishedShard> shards;
  std::optional<BegunShard> begun;
  std::vector<Json> modules;  // how each was made, where that is more than rounding
  Json to_json() const;
};

// Of an unfinished folder. Throws Error unless it was begun with this source and these options;
// names the first difference.
Journal read_journal(const std::string& folder, const Json& source, const Json& options);
void write_journal(const std::string& folder, const Journal& journal);

// The first member in which two values differ, "a.b.c is 1, here 2"; "": none.
std::string first_difference(const Json& before, const Json& now, const std::string& path = "");

}  // namespace moebius
