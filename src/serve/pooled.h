// SPDX-License-Identifier: Apache-2.0
// /v1/embeddings (OpenAI's form) and /v1/rerank (Jina's and Cohere's): requests for models that give
// vectors or scores, and their answers.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/answer.h"
#include "serve/request.h"

namespace moebius {

struct PooledRequest {
  bool base64 = false;
  std::optional<size_t> dimensions;
  std::string prompt;  // text before each
  // Scores.
  std::string query;
  std::vector<std::string> documents;
  size_t top_n = SIZE_MAX;
  bool return_documents = true;
};

// Refuse models that give something else. Throw ApiError.
void check_generates(const ServedModel& model);
ApiRequest parse_embeddings_request(RequestBody body, const ServedModel& model);
ApiRequest parse_rerank_request(const RequestBody& body, const ServedModel& model);
std::vector<GenerationRequest> prepare_pooled(ApiRequest& request, const ServedModel& model);
std::unique_ptr<InterfaceAnswer> make_pooled_answer(const ApiRequest& request,
                                                    const ServedModel& model,
                                                    const std::vector<GenerationRequest>& prompts);

// Throws Error where the folder does not say how pairs of texts become tokens.
void check_pairs(const Tokenizer& tokenizer, const ChatTemplates& templates,
                 const PoolingPlan& plan);

}  // namespace moebius
