// SPDX-License-Identifier: Apache-2.0
// Reads requests and writes answers of /v1/embeddings (OpenAI's form) and /v1/rerank (Jina's and
// Cohere's), for models that return vectors or scores.
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
  std::string prompt;  // text placed before each input
  // --- for scores ---
  std::string query;
  std::vector<std::string> documents;
  size_t top_n = SIZE_MAX;
  bool return_documents = true;
};

// Throw ApiError unless the model returns what the endpoint is for: text, vectors or scores.
void check_generates(const ServedModel& model);
ApiRequest parse_embeddings_request(RequestBody body, const ServedModel& model);
ApiRequest parse_rerank_request(const RequestBody& body, const ServedModel& model);
std::vector<Request> prepare_pooled(ApiRequest& request, const ServedModel& model);
std::unique_ptr<InterfaceAnswer> make_pooled_answer(const AnswerInput& in);

// Throws Error if the folder does not tell how pairs of texts become tokens.
void check_pairs(const Tokenizer& tokenizer, const ChatTemplates& templates,
                 const PoolingPlan& plan);

}  // namespace moebius
