// SPDX-License-Identifier: Apache-2.0
// Says what a GGUF file's metadata mean in the words of config.json.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "gguf/gguf.h"

namespace moebius {

// Returns the config.json of the Hugging Face folder that a file stands for. Keys of the
// architecture that nothing reads are listed in one warning. Throws Error that names the key for
// values that contradict each other or the tensors.
Json gguf_config(const Gguf& gguf, std::vector<std::string>& warnings);

}  // namespace moebius
