// SPDX-License-Identifier: Apache-2.0
// Limits the rendering of templates with untrusted input, and makes the errors of refused
// renderings.
#pragma once
#include <string>

#include "serve/api_error.h"
#include "serve/request.h"
#include "text/chat_template.h"

namespace moebius {

// Sets the limits of one request; `time` is what is left for it, because all renderings of a
// request share it.
constexpr std::chrono::milliseconds kTemplateTime{200};
void limit_template(ChatInput& input, std::chrono::nanoseconds time = kTemplateTime);

// Returns a 400 error without the path of the folder, which clients must not learn.
ApiError template_refusal(const Error& error, const ServedModel& model, const std::string& texts,
                          const std::string& param);

}  // namespace moebius
