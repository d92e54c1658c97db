// SPDX-License-Identifier: Apache-2.0
// Decides what Ctrl-C does during work: end the program with a message, or stop the answer.
#pragma once

namespace moebius {

// Makes the first Ctrl-C end the program at once with exit code 130 and `word` on stderr (a string
// that must stay valid). For work without a place to stop and with nothing to lose, such as
// loading.
void interrupt_ends(const char* word);
inline constexpr const char* kInterruptedLoading = "interrupted while loading";
// Note Ctrl-C: interrupt_is_noted() makes the first Ctrl-C set a flag, which interrupt_seen()
// returns, and end a waiting read; a second one before clear_interrupt() ends the program.
void interrupt_is_noted();
bool interrupt_seen();
void clear_interrupt();

}  // namespace moebius
