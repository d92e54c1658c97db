// SPDX-License-Identifier: Apache-2.0
// What templates may take for a request from a stranger, and how their refusals are told.
#pragma once
#include <string>

#include "serve/api_error.h"
#include "serve/request.h"
#include "text/chat_template.h"

namespace moebius {

// The limits of one request; `time` is what is left of it (renderings of one request share it).
constexpr std::chrono::milliseconds kTemplateTime{200};
void limit_template(ChatInput& input, std::chrono::nanoseconds time = kTemplateTime);

// 400, without the folder's place: where the model lies is nobody's business.
ApiError template_refusal(const Error& error, const ServedModel& model, const std::string& texts,
                          const std::string& param);

}  // namespace moebius
