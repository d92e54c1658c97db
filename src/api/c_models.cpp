// SPDX-License-Identifier: Apache-2.0
// Implements the C interface of whole models over the C++ one.
#include <cmath>
#include <limits>

#include "api/c_types.h"

namespace moebius {
namespace {

using llm::Chat;
using llm::Event;

llm::LoadOptions load_options(const moebius_model_options* given) {
  moebius_model_options o{};
  take_struct(given, o, "moebius_model_options");
  llm::LoadOptions out;
  take_shared(o, out);
  out.dtype = text_of(o.dtype);
  out.kv_dtype = text_of(o.kv_dtype);
  out.context = o.context;
  out.pack_dir = text_of(o.pack_dir);
  if (o.speculate != nullptr) out.speculate = text_of(o.speculate);
  if (o.device != nullptr) out.device = text_of(o.device);
  out.experts = text_of(o.experts);
  out.gpu_memory = o.gpu_memory;
  return out;
}

Chat chat_of(const moebius_chat* given) {
  require(given, "chat");
  moebius_chat c{};
  c.add_generation_prompt = 1;
  take_struct(given, c, "moebius_chat");
  require(c.messages, "messages");
  return {c.messages, text_of(c.tools), text_of(c.documents), text_of(c.extra),
          c.add_generation_prompt != 0};
}

void give_ids(const std::vector<int32_t>& ids, int32_t* to, size_t capacity, size_t* count) {
  require(count, "count");
  if (capacity != 0) require(to, "ids");
  *count = ids.size();
  const size_t n = ids.size() < capacity ? ids.size() : capacity;
  if (n != 0) std::memcpy(to, ids.data(), n * sizeof *to);
}

std::span<const int32_t> ids_given(const int32_t* ids, size_t count, const char* what) {
  if (count != 0) require(ids, what);
  if (count > INT32_MAX) bad_argument(std::string(what) + ": too many", what);
  return {ids, count};
}

std::vector<std::string> texts_given(const char* const* texts, size_t count, const char* what) {
  std::vector<std::string> out;
  if (count != 0) require(texts, what);
  if (count > 1'000'000) bad_argument(std::string(what) + ": too many", what);
  for (size_t i = 0; i < count; ++i) {
    require(texts[i], what);
    out.emplace_back(texts[i]);
  }
  return out;
}

// Numbers that a caller did not set: NaN, and -1 for integers.
std::optional<float> said(float v) { return std::isnan(v) ? std::nullopt : std::optional(v); }
std::optional<int> said(int32_t v) { return v < 0 ? std::nullopt : std::optional(v); }
void unsay(float& v) { v = std::numeric_limits<float>::quiet_NaN(); }
void unsay(int32_t& v) { v = -1; }

moebius_request request_defaults() {
  moebius_request r{};
  r.size = sizeof r;
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) unsay(r.name);
#include "base/sampling_numbers.inc"
  unsay(r.logprobs);
  r.max_tokens = -1;
  r.skip_special = 1;
  r.n = 1;
  return r;
}

llm::Request request_of(const moebius_request* given) {
  require(given, "request");
  moebius_request r = request_defaults();
  take_struct(given, r, "moebius_request");
  llm::Request out;
  const auto prompt = ids_given(r.prompt, r.prompt_tokens, "prompt");
  out.prompt.assign(prompt.begin(), prompt.end());
  llm::Sampling& s = out.sampling;
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) s.name = said(r.name);
#include "base/sampling_numbers.inc"
  s.logprobs = said(r.logprobs);
  if (r.max_tokens >= 0) s.max_tokens = static_cast<uint64_t>(r.max_tokens);
  s.min_tokens = static_cast<uint64_t>(r.min_tokens < 0 ? 0 : r.min_tokens);
  s.seed = r.seed;
  s.stop = texts_given(r.stop, r.stops, "stop");
  const auto stop = ids_given(r.stop_tokens, r.stop_token_count, "stop_tokens");
  s.stop_tokens.assign(stop.begin(), stop.end());
  s.ignore_eos = r.ignore_eos != 0;
  s.include_stop = r.include_stop != 0;
  s.skip_special = r.skip_special != 0;
  s.n = r.n;
  if (r.json_schema != nullptr) s.json_schema = r.json_schema;
  if (r.regex != nullptr) s.regex = r.regex;
  s.choice = texts_given(r.choice, r.choices, "choice");
  if (r.tools != nullptr) s.tools = r.tools;
  if (r.tool_choice != nullptr) s.tool_choice = r.tool_choice;
  return out;
}

moebius_event c_event_of(const Event& e, std::vector<moebius_alternative>& tops) {
  for (const auto& [token, logprob] : e.top) tops.push_back({token, logprob});
  moebius_event out{};
  out.size = sizeof out;
  out.id = e.id;
  out.choice = e.choice;
  out.token = e.token;
  out.logprob = e.logprob;
  out.top = tops.data();
  out.tops = tops.size();
  out.text = e.text.c_str();
  out.text_bytes = e.text.size();
  out.finish = static_cast<moebius_finish>(e.finish);
  out.stop_token = e.stop_token;
  out.stop_text = e.stop_text.empty() ? nullptr : e.stop_text.c_str();
  out.error = e.finish == llm::Finish::kError ? e.error.c_str() : nullptr;
  out.cached_tokens = e.cached_tokens;
  return out;
}

}  // namespace
}  // namespace moebius

using namespace moebius;  // NOLINT: no header, though bundles include it

moebius_tokenizer* moebius_tokenizer_open(const char* folder) {
  return made<moebius_tokenizer>([&] {
    require(folder, "folder");
    return llm::Tokenizer::open(folder);
  });
}
void moebius_tokenizer_free(moebius_tokenizer* tokenizer) { free_handle(tokenizer); }
int moebius_tokenizer_encode(const moebius_tokenizer* tokenizer, const char* text, size_t bytes,
                             int add_special, int32_t* ids, size_t capacity, size_t* count) {
  return answer([&] {
    const auto t = get(tokenizer);
    if (bytes != 0) require(text, "text");
    if (bytes > INT32_MAX) bad_argument("text: too long", "text");
    give_ids(t->encode(std::string(bytes != 0 ? text : "", bytes), add_special != 0), ids, capacity,
             count);
  });
}
char* moebius_tokenizer_decode(const moebius_tokenizer* tokenizer, const int32_t* ids, size_t count,
                               int skip_special, size_t* bytes) {
  return answer(bytes, [&] {
    const auto t = get(tokenizer);
    return t->decode(ids_given(ids, count, "ids"), skip_special != 0);
  });
}
size_t moebius_tokenizer_vocab(const moebius_tokenizer* tokenizer) {
  return fact(tokenizer, &llm::Tokenizer::vocab);
}
char* moebius_tokenizer_token(const moebius_tokenizer* tokenizer, int32_t id, size_t* bytes) {
  return answer(bytes, [&] {
    const std::optional<std::string> token = get(tokenizer)->token(id);
    if (!token) bad_argument("no token has the id " + std::to_string(id), "id");
    return *token;
  });
}
int32_t moebius_tokenizer_id(const moebius_tokenizer* tokenizer, const char* token) {
  return guarded<int32_t>(-1, [&] {
    const auto t = get(tokenizer);
    require(token, "token");
    const std::optional<int32_t> id = t->id(token);
    if (!id) bad_argument("the vocabulary has no such token", "token");
    return *id;
  });
}
int moebius_tokenizer_is_special(const moebius_tokenizer* tokenizer, int32_t id) {
  return answer([&] { return get(tokenizer)->is_special(id); });
}
int moebius_tokenizer_has_template(const moebius_tokenizer* tokenizer) {
  return fact(tokenizer, &llm::Tokenizer::has_template);
}
char* moebius_tokenizer_template(const moebius_tokenizer* tokenizer, const moebius_chat* chat,
                                 size_t* bytes) {
  return answer(bytes, [&] { return get(tokenizer)->chat_text(chat_of(chat)); });
}
int moebius_tokenizer_chat(const moebius_tokenizer* tokenizer, const moebius_chat* chat,
                           int32_t* ids, size_t capacity, size_t* count) {
  return answer(
      [&] { give_ids(get(tokenizer)->chat_tokens(chat_of(chat)), ids, capacity, count); });
}
char* moebius_tokenizer_answer(const moebius_tokenizer* tokenizer, const moebius_chat* chat,
                               const int32_t* ids, size_t count, int ended, size_t* bytes) {
  return answer(bytes, [&] {
    if (count > 0) require(ids, "ids");
    return get(tokenizer)->chat_answer(chat_of(chat), {ids, count}, ended != 0);
  });
}

moebius_stream* moebius_stream_new(const moebius_tokenizer* tokenizer, int skip_special) {
  return made<moebius_stream>([&] {
    const auto t = get(tokenizer);
    return llm::Stream(*t, skip_special != 0);
  });
}
void moebius_stream_free(moebius_stream* stream) { free_handle(stream); }
char* moebius_stream_push(moebius_stream* stream, int32_t id, size_t* bytes) {
  return answer(bytes, [&] {
    const auto s = get(stream);
    const std::lock_guard lock(s->mutex);
    return s->stream.push(id);
  });
}
char* moebius_stream_finish(moebius_stream* stream, size_t* bytes) {
  return answer(bytes, [&] {
    const auto s = get(stream);
    const std::lock_guard lock(s->mutex);
    return s->stream.finish();
  });
}

moebius_model* moebius_model_load(const char* folder, const moebius_model_options* options) {
  return made<moebius_model>([&] {
    require(folder, "folder");
    return llm::Model::load(folder, load_options(options));
  });
}
void moebius_model_free(moebius_model* model) { free_handle(model); }
size_t moebius_model_vocab(const moebius_model* model) { return fact(model, &llm::Model::vocab); }
size_t moebius_model_context(const moebius_model* model) {
  return fact(model, &llm::Model::context);
}
char* moebius_model_info_json(const moebius_model* model) {
  return fact(model, &llm::Model::info_json);
}
moebius_tokenizer* moebius_model_tokenizer(const moebius_model* model) {
  return made<moebius_tokenizer>([&] { return get(model)->tokenizer(); });
}
int moebius_model_logits(const moebius_model* model, const int32_t* tokens, size_t count,
                         float* logits, size_t room) {
  return answer([&] {
    const auto m = get(model);
    if (room != 0) require(logits, "logits");
    m->logits(ids_given(tokens, count, "tokens"), {logits, room});
  });
}
int moebius_model_perplexity(const moebius_model* model, const int32_t* tokens, size_t count,
                             size_t context, moebius_perplexity* to) {
  return answer([&] {
    const auto m = get(model);
    require(to, "to");
    const llm::Perplexity p = m->perplexity(ids_given(tokens, count, "tokens"), context);
    give_struct({0, p.loss, p.error, p.perplexity, p.tokens}, to, "to");
  });
}

moebius_engine* moebius_engine_new(const moebius_model* model,
                                   const moebius_engine_options* options) {
  return made<moebius_engine>([&] {
    const auto m = get(model);
    moebius_engine_options o{};
    take_struct(options, o, "moebius_engine_options");
    llm::EngineOptions eo;
    eo.context = o.context;
    eo.kv_bytes = o.kv_bytes;
    if (o.parallel != 0) eo.parallel = o.parallel;
    if (!(o.max_step >= 0)) bad_argument("max_step is below 0", "max_step");
    if (o.max_step > 0) eo.max_step = o.max_step;
    return llm::Engine(*m, eo);
  });
}
void moebius_engine_free(moebius_engine* engine) { free_handle(engine); }
int moebius_request_init(moebius_request* request, size_t size) {
  return answer([&] {
    require(request, "request");
    request->size = size;
    give_struct(request_defaults(), request, "moebius_request");
  });
}
int moebius_engine_add(moebius_engine* engine, const moebius_request* request, uint64_t* id) {
  return answer([&] {
    const auto e = get(engine);
    const uint64_t added = e->engine.add(request_of(request));
    if (id != nullptr) *id = added;
  });
}
int moebius_engine_cancel(moebius_engine* engine, uint64_t id) {
  return answer([&] { get(engine)->engine.cancel(id); });
}
int moebius_engine_idle(const moebius_engine* engine) {
  return guarded(1, [&] { return get(engine)->engine.idle() ? 1 : 0; });
}
size_t moebius_engine_context(const moebius_engine* engine) {
  return answer([&] { return get(engine)->engine.context(); });
}
int moebius_engine_step(moebius_engine* engine, const moebius_event** events, size_t* count) {
  return answer([&] {
    const auto e = get(engine);
    require(events, "events"), require(count, "count");
    *events = nullptr;
    *count = 0;
    const std::lock_guard lock(e->mutex);
    e->events = e->engine.step();
    e->tops.assign(e->events.size(), {});
    e->list.clear();
    for (size_t i = 0; i < e->events.size(); ++i)
      e->list.push_back(c_event_of(e->events[i], e->tops[i]));
    *events = e->list.data();
    *count = e->list.size();
  });
}
