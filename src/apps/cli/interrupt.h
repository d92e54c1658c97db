// SPDX-License-Identifier: Apache-2.0
// What Ctrl-C does while text is made: end the program with a word, or stop the answer.
#pragma once

namespace moebius {

// Lets the first Ctrl-C end the program at once with exit code 130, saying `word` (which must
// outlive the program's work) on stderr. For work that has no place to stop and nothing to lose, such
// as loading.
void interrupt_ends(const char* word);
inline constexpr const char* kInterruptedLoading = "interrupted while loading";
// From now on Ctrl-C is noted, and a waiting read ends. A second one before clear_interrupt() ends
// the program.
void interrupt_is_noted();
bool interrupt_seen();
void clear_interrupt();

}  // namespace moebius
