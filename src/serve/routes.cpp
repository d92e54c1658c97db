// SPDX-License-Identifier: Apache-2.0
#include "serve/routes.h"

namespace moebius {

const Route* find_route(std::string_view path) {
  using S = StatusAnswers;
  using Text = Route::Text;
  static constexpr Route kRoutes[] = {
      {"/health", "GET", false, &S::health, true},
      {"/live", "GET", false, &S::live, true},
      {"/metrics", "GET", false, &S::metrics, true},
      {"/", "GET", false, &S::page},
      {"/api/state", "GET", false, &S::state},
      {"/api/events", "GET", false, &S::events},
      {"/version", "GET", false, &S::version},
      {"/openapi.json", "GET", false, &S::openapi},
      {"/v1/models", "GET", true, &S::models},
      {"/v1/chat/completions", "POST", true, Endpoint::kChat},
      {"/v1/completions", "POST", true, Endpoint::kCompletion},
      {"/v1/embeddings", "POST", true, Endpoint::kEmbeddings},
      {"/v1/rerank", "POST", true, Endpoint::kRerank},
      {"/tokenize", "POST", true, Text{Endpoint::kTokenize, &tokenize_answer}},
      {"/detokenize", "POST", true, Text{Endpoint::kDetokenize, &detokenize_answer}},
      {"/v1/responses", "POST", true, Endpoint::kResponses},
      {"/v1/messages", "POST", true, Endpoint::kMessages},
      {"/v1/messages/count_tokens", "POST", true, Text{Endpoint::kMessages, &count_tokens_answer}},
  };
  for (const Route& r : kRoutes)
    if (r.path == path) return &r;
  static constexpr Route kBelow[] = {{kModelPrefix, "GET", true, &S::model},
                                     {"/v1/responses/", "GET", false, &S::stored_response}};
  for (const Route& r : kBelow)
    if (path.starts_with(r.path) && path.size() > r.path.size()) return &r;
  return nullptr;
}

}  // namespace moebius
