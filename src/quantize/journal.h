// SPDX-License-Identifier: Apache-2.0
// Reads and writes moebius-quantize.json. In an unfinished folder it records what was made so far
// and from what, so that --resume gives the bytes of an uninterrupted run; in a finished folder it
// records how the folder was made.
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

// Describes the finished units of a file that is not complete.
struct BegunShard {
  std::string name, hash;
  size_t units = 0;
};

// Returns facts about a source's files: names, sizes, times and a hash of their headers.
Json source_facts(const std::string& folder, const TensorStore& store);

struct Journal {
  Json source, options;
  std::vector<FinishedShard> shards;
  std::optional<BegunShard> begun;
  std::vector<Json> modules;  // how each module was made, if not by rounding
  Json to_json() const;
};

// Reads the journal of an unfinished folder. Throws Error that names the first difference unless it
// was made from this source with these options.
Journal read_journal(const std::string& folder, const Json& source, const Json& options);
void write_journal(const std::string& folder, const Journal& journal);

// Returns the first difference of two values, "a.b.c is 1, here 2", or "".
std::string first_difference(const Json& before, const Json& now, const std::string& path = "");

}  // namespace moebius
