// SPDX-License-Identifier: Apache-2.0
// Names sets of endpoints for tables of fields, as bits of Endpoint.
#pragma once
#include "serve/body.h"

namespace moebius::endpoint_sets {

inline constexpr auto kChat = static_cast<unsigned>(Endpoint::kChat);
inline constexpr auto kCompletion = static_cast<unsigned>(Endpoint::kCompletion);
inline constexpr auto kTokenize = static_cast<unsigned>(Endpoint::kTokenize);
inline constexpr auto kDetokenize = static_cast<unsigned>(Endpoint::kDetokenize);
inline constexpr auto kAnthropic = static_cast<unsigned>(Endpoint::kMessages);
inline constexpr auto kResponses = static_cast<unsigned>(Endpoint::kResponses);
inline constexpr auto kEmbeddings = static_cast<unsigned>(Endpoint::kEmbeddings);
inline constexpr auto kRerank = static_cast<unsigned>(Endpoint::kRerank);
inline constexpr unsigned kPooled = kEmbeddings | kRerank;
inline constexpr unsigned kBoth = kChat | kCompletion, kMessages = kChat | kTokenize;
inline constexpr unsigned kGenerating = kBoth | kAnthropic | kResponses;
inline constexpr unsigned kAll = kGenerating | kTokenize | kDetokenize | kPooled;

}  // namespace moebius::endpoint_sets
