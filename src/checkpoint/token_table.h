// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

namespace moebius {

class Checkpoint;
struct Module;

// Names that the table of tokens has; a family of the registry calls it by the first one.
inline constexpr std::string_view kTokenTables =
    "embed_tokens wte embeddings word_embeddings tok_embeddings embed shared";

// The table that tokens are looked up in, by which a tied lm_head multiplies too; null when the folder
// has none.
const Module* token_table(const Checkpoint& checkpoint);
// Whether a module is an output projection of which only a bias is stored: its matrix is the table.
bool multiplies_by_table(const Checkpoint& checkpoint, const Module& module);

}  // namespace moebius
