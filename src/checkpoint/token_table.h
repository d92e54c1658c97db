// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace moebius {

class Checkpoint;
struct Module;

// Names that the table of token embeddings may have; families of the registry use the first.
inline constexpr std::string_view kTokenTables =
    "embed_tokens wte embeddings word_embeddings tok_embeddings embed shared";

// Returns the table of token embeddings, which a tied lm_head multiplies with, too; null if the
// folder has none.
const Module* token_table(const Checkpoint& checkpoint);
// Returns true for an output projection that stores only a bias: its matrix is the table of token
// embeddings.
bool multiplies_by_table(const Checkpoint& checkpoint, const Module& module);

}  // namespace moebius
