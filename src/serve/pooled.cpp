// SPDX-License-Identifier: Apache-2.0
#include "serve/pooled.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "model/run/pooling.h"
#include "runtime/loss_meter.h"
#include "serve/body_fields.h"
#include "text/base64.h"

namespace moebius {
namespace {

static_assert(std::endian::native == std::endian::little, "base64 of floats is little-endian");

const PoolingPlan& plan_of(const ServedModel& model, bool scores) {
  if (model.pooling == nullptr)
    refuse("unsupported", "model", "'{}' gives text: its folder declares no {}", model.name,
           scores ? "score of pairs (a head of one label, LogitScore)" : "pooling (modules.json)");
  if (model.pooling->scores != scores)
    refuse("unsupported", "model", "'{}' gives {}; ask {}", model.name,
           scores ? "vectors" : "scores of pairs", scores ? "/v1/embeddings" : "/v1/rerank");
  return *model.pooling;
}

std::string prompt_of(const Fields& f, const PoolingPlan& plan) {
  const auto named = f.string("prompt_name");
  const std::string name = named.value_or(plan.default_prompt);
  if (name.empty()) return "";
  const auto it = plan.prompts.find(name);
  if (it != plan.prompts.end()) return it->second;
  if (!named) return "";
  invalid("prompt_name", "prompt_name: the folder has no prompt '{}'", printable(name, 80));
}

ApiRequest pooled_request(const BodyFields& f, const RequestBody& body, const ServedModel& model) {
  ApiRequest r;
  if (const auto name = f.string("model")) check_model_name(*name, model);
  refuse_fields(f, body.endpoint);
  r.endpoint = body.endpoint;
  r.pooled = std::make_shared<PooledRequest>();
  r.generation.max_new = 0;
  return r;
}

// Returns messages in the form that templates of rerankers expect.
Json pair_messages(const std::string& system, const std::string& query,
                   const std::string& document) {
  Json messages = Json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push(Json::object({{"role", role}, {"content", content}}));
  };
  if (!system.empty()) add("system", system);
  add("query", query), add("document", document);
  return messages;
}

bool prints_pairs(const ChatTemplates& templates) {
  if (templates.empty()) return false;
  const Json messages = pair_messages("", "q7x", "d8y");
  ChatInput input;
  input.messages = &messages;
  try {
    const std::string text = joined(templates.render(input));
    return text.find("q7x") != std::string::npos && text.find("d8y") != std::string::npos;
  } catch (const Error&) {
    return false;  // the template expects other roles
  }
}

// Encodes the pairs of one query; their templates together have the time of one chat's.
class PairEncoder {
 public:
  PairEncoder(const PooledRequest& request, const ServedModel& model)
      : request_(request), model_(model), by_template_(prints_pairs(*model.templates)) {}

  // Returns nothing if the pair has more tokens than the context.
  std::optional<std::vector<int32_t>> operator()(const std::string& document) {
    if (by_template_) return rendered(document);
    auto ids = encode(request_.prompt + request_.query);
    const auto more = encode(document);
    if (!ids || !more) return std::nullopt;
    ids->insert(ids->end(), more->begin(), more->end());
    if (ids->size() > model_.context) return std::nullopt;
    return ids;
  }

 private:
  std::optional<std::vector<int32_t>> encode(const std::string& text) const {
    return model_.tokenizer->encode_within(text, /*add_special=*/false, model_.context);
  }
  std::optional<std::vector<int32_t>> rendered(const std::string& document) {
    const Json messages = pair_messages(request_.prompt, request_.query, document);
    ChatInput input;
    input.messages = &messages;
    input.add_generation_prompt = model_.pooling->template_generates;
    limit_template(input, std::max(left_, std::chrono::nanoseconds(1)));
    const int64_t start = thread_cpu_ns();
    std::vector<TextSegment> segments = model_.templates->render(input);
    left_ -= std::chrono::nanoseconds(thread_cpu_ns() - start);
    return model_.tokenizer->encode_segments_within(std::move(segments), false, model_.context);
  }

  const PooledRequest& request_;
  const ServedModel& model_;
  bool by_template_;
  std::chrono::nanoseconds left_ = kTemplateTime;
};

// Returns the number of tokens of a prompt that precedes texts.
size_t prompt_tokens(const std::string& prompt, const Tokenizer& tokenizer) {
  if (prompt.empty()) return 0;
  const std::vector<int32_t> ids = tokenizer.encode(prompt, true),
                             none = tokenizer.encode("", true);
  return ids.size() - (!none.empty() && !ids.empty() && ids.back() == none.back() ? 1 : 0);
}

class PooledAnswer final : public InterfaceAnswer {
 public:
  explicit PooledAnswer(const AnswerInput& in)
      : request_(in.request.pooled), model_(in.model), vectors_(in.prompts.size()) {
    for (const Request& p : in.prompts) usage_.prompt += p.prompt.size();
  }
  bool complete() const override { return ended_ == vectors_.size(); }
  std::string take(size_t prompt, const StepResult& event) override {
    if (event.finish == Finish::kNone) return "";
    vectors_[prompt] = event.vector;
    ++ended_;
    return "";
  }
  std::string stream_end() override { return ""; }
  std::string error_events(const ApiError& error) override { return error_json(error); }
  std::string whole() override { return model_.pooling->scores ? scores() : vectors(); }

 private:
  std::string vectors() {
    std::string list;
    for (size_t i = 0; i < vectors_.size(); ++i) {
      std::vector<float>& v = vectors_[i];
      if (request_->dimensions) cut_vector(v, *request_->dimensions, model_.pooling->normalize);
      const std::string text =
          request_->base64
              ? fmt::format("\"{}\"",
                            encode_base64({reinterpret_cast<const char*>(v.data()), 4 * v.size()}))
              : fmt::format("[{}]", fmt::join(v, ","));
      list += fmt::format("{}{{\"object\":\"embedding\",\"index\":{},\"embedding\":{}}}",
                          i == 0 ? "" : ",", i, text);
    }
    return fmt::format(
        "{{\"object\":\"list\",\"data\":[{}],\"model\":{},\"usage\":{{\"prompt_tokens\":{},"
        "\"total_tokens\":{}}}}}",
        list, json_quoted(model_.name), usage_.prompt, usage_.prompt);
  }
  std::string scores() {
    std::vector<size_t> order(vectors_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return vectors_[a][0] > vectors_[b][0]; });
    order.resize(std::min(order.size(), request_->top_n));
    std::string list;
    for (const size_t i : order) {
      list += fmt::format("{}{{\"index\":{},\"relevance_score\":{}", list.empty() ? "" : ",", i,
                          vectors_[i][0]);
      if (request_->return_documents)
        list += fmt::format(",\"document\":{{\"text\":{}}}", json_quoted(request_->documents[i]));
      list += '}';
    }
    return fmt::format(
        "{{\"id\":\"rerank-{}\",\"model\":{},\"results\":[{}],\"usage\":{{\"prompt_tokens\":{},"
        "\"total_tokens\":{}}}}}",
        random_hex(24), json_quoted(model_.name), list, usage_.prompt, usage_.prompt);
  }
  std::shared_ptr<PooledRequest> request_;
  const ServedModel& model_;
  std::vector<std::vector<float>> vectors_;
  size_t ended_ = 0;
};

}  // namespace

void check_generates(const ServedModel& model) {
  if (model.pooling == nullptr) return;
  refuse("unsupported", "model", "'{}' gives {} and no text; ask {}", model.name,
         model.pooling->scores ? "scores" : "vectors",
         model.pooling->scores ? "/v1/rerank" : "/v1/embeddings");
}

ApiRequest parse_embeddings_request(RequestBody body, const ServedModel& model) {
  const BodyFields f(body);
  ApiRequest r = pooled_request(f, body, model);
  const PoolingPlan& plan = plan_of(model, false);
  const auto input = body.lists.find("input");
  if (input == body.lists.end()) missing("input");
  if (input->second.empty()) refuse("empty_prompt", "input", "input is empty");
  r.prompts = std::move(input->second);
  r.add_special = f.boolean("add_special_tokens", true);
  const std::string format = f.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    invalid("encoding_format", "encoding_format is '{}'; expected 'float' or 'base64'",
            printable(format, 40));
  r.pooled->base64 = format == "base64";
  r.pooled->prompt = prompt_of(f, plan);
  if (const auto n = f.integer("dimensions")) {
    const auto size = static_cast<size_t>(*n);
    if (size != model.vector_size) {
      if (!plan.truncates)
        invalid("dimensions",
                "dimensions is {}; vectors of this model have {} and its folder does not say that "
                "they may be cut",
                size, model.vector_size);
      if (size > model.vector_size ||
          (!plan.dimensions.empty() && std::find(plan.dimensions.begin(), plan.dimensions.end(),
                                                 size) == plan.dimensions.end()))
        invalid("dimensions", "dimensions is {}; expected {}", size,
                plan.dimensions.empty()
                    ? fmt::format("1 to {}", model.vector_size)
                    : fmt::format("one of {}", fmt::join(plan.dimensions, ", ")));
    }
    r.pooled->dimensions = size;
  }
  return r;
}

ApiRequest parse_rerank_request(const RequestBody& body, const ServedModel& model) {
  const BodyFields f(body);
  ApiRequest r = pooled_request(f, body, model);
  const PoolingPlan& plan = plan_of(model, true);
  PooledRequest& p = *r.pooled;
  p.query = f.required_string("query");
  f.required("documents");
  const Json* documents = f.array("documents", "an array of strings");
  if (documents->items().empty()) refuse("empty_prompt", "documents", "documents is empty");
  for (size_t i = 0; i < documents->items().size(); ++i) {
    const Json& d = documents->items()[i];
    const Json* text = d.is_object() ? d.find("text") : &d;
    const std::string path = fmt::format("documents[{}]", i);
    if (text == nullptr || !text->is_string())
      wrong_type(d, path, "a string, or an object with the string text");
    p.documents.push_back(text->as_string());
  }
  if (const auto n = f.integer("top_n")) p.top_n = static_cast<size_t>(*n);
  p.return_documents = f.boolean("return_documents", true);
  p.prompt = prompt_of(f, plan);
  r.prompts.resize(p.documents.size());  // only their number is used
  return r;
}

std::vector<Request> prepare_pooled(ApiRequest& request, const ServedModel& model) {
  PooledRequest& p = *request.pooled;
  std::vector<Request> out;
  const size_t skipped = prompt_tokens(p.prompt, *model.tokenizer);
  const auto add = [&](std::optional<std::vector<int32_t>> ids, const char* field, size_t i) {
    const std::string param = fmt::format("{}[{}]", field, i);
    if (!ids || ids->size() > model.context)
      throw context_exceeded(ids ? std::optional(ids->size()) : std::nullopt, model.context, param);
    if (ids->empty()) refuse("empty_prompt", param, "{} has no token", param);
    out.push_back(request.generation);
    out.back().prompt = std::move(*ids);
    out.back().prompt_skipped = skipped;
  };
  if (model.pooling->scores) {
    PairEncoder encode(p, model);
    for (size_t i = 0; i < p.documents.size(); ++i) {
      std::optional<std::vector<int32_t>> ids;
      try {
        ids = encode(p.documents[i]);
      } catch (const Error& e) {
        throw template_refusal(e, model, "texts", fmt::format("documents[{}]", i));
      }
      add(std::move(ids), "documents", i);
    }
    return out;
  }
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    if (auto* ids = std::get_if<std::vector<int32_t>>(&request.prompts[i])) {
      add(std::move(*ids), "input", i);
      continue;
    }
    const std::string text = p.prompt + std::get<std::string>(request.prompts[i]);
    add(model.tokenizer->encode_within(text, request.add_special, model.context), "input", i);
  }
  return out;
}

std::unique_ptr<InterfaceAnswer> make_pooled_answer(const AnswerInput& in) {
  return std::make_unique<PooledAnswer>(in);
}

void check_pairs(const Tokenizer& tokenizer, const ChatTemplates& templates,
                 const PoolingPlan& plan) {
  if (!plan.scores || prints_pairs(templates) || tokenizer.encode("", true).empty()) return;
  fail(
      "{}: neither a chat template with the roles query and document nor a tokenizer that adds no "
      "tokens says how pairs of texts are written",
      templates.folder());
}

}  // namespace moebius
