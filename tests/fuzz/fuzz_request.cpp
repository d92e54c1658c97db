// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the body of a request to every endpoint, of models that give text (with and
// without a chat template), vectors and scores. It is refused with words and a status, or every number
// of what comes out is within its range and the answer to it is JSON, in events or whole. The same
// bytes are the text of the answer.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/json.h"
#include "fuzz/byte_tokenizer.h"
#include "fuzz/target.h"
#include "model/run/pooling.h"
#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/request.h"
#include "text/answer/splitter.h"

namespace moebius::fuzz_request {
namespace {

constexpr std::string_view kTemplate =
    R"({% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif -%}
{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] -%}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor -%}
{% endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %})";

ChatTemplates fuzz_templates() {
  std::string folder = (std::filesystem::temp_directory_path() / "fuzz_request_XXXXXX").string();
  require(mkdtemp(folder.data()) != nullptr);
  const std::filesystem::path file = std::filesystem::path(folder) / "chat_template.jinja";
  std::ofstream(file) << kTemplate;
  ChatTemplates templates = ChatTemplates::from_folder(folder);
  std::filesystem::remove_all(folder);
  return templates;
}

// Live as long as the process.
struct Models {
  Models() {
    for (ServedModel& m : all) {
      m.name = "m";
      m.tokenizer = &tokenizer;
      m.templates = &templates;
      m.context = 512;
      m.vocab = 256;
      m.slots = 16;
      m.vector_size = 8;
    }
    all[0].markup = choose_answer_markup(templates, tokenizer, "hermes", "think");
    all[1].templates = &none;
    auto vectors = std::make_shared<PoolingPlan>();
    vectors->mean = true;
    vectors->normalize = vectors->truncates = true;
    vectors->prompts = {{"query", "q: "}};
    all[2].pooling = vectors;
    auto scores = std::make_shared<PoolingPlan>();
    scores->scores = true;
    all[3].pooling = scores;
  }
  const Tokenizer tokenizer = byte_tokenizer();
  const ChatTemplates templates = fuzz_templates(), none{};
  std::array<ServedModel, 4> all;
};

// Blocks of lines, "data: JSON" in each but for pings and the last of a stream.
void check_stream(std::string_view out) {
  while (!out.empty()) {
    const size_t end = out.find("\n\n");
    require(end != std::string_view::npos);
    std::string_view block = out.substr(0, end);
    const size_t data = block.starts_with("data: ") ? 0 : block.find("\ndata: ") + 1;
    require(data == 0 || block.starts_with("event: "));
    block.remove_prefix(data + 6);
    require(block.find('\n') == std::string_view::npos);
    if (block != "[DONE]") parse_json_strictly(block, "event");
    out.remove_prefix(end + 2);
  }
}

// The text is the whole answer, in two pieces.
void check_answer(const ApiRequest& r, const std::vector<Request>& prompts,
                  const ServedModel& model, const std::string& text) {
  const std::string id = "req_1";
  const auto answer = make_answer({r, model, prompts, 1, id});
  std::string stream;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const Request& g = prompts[p];
    for (size_t choice = 0; choice < g.n; ++choice) {
      AnswerSplitter splitter(g.text.answer != nullptr ? g.text.answer
                                                       : std::make_shared<AnswerRules>());
      for (const bool last : {false, true}) {
        StepResult e;
        e.index = choice;
        e.choice = {g.prompt[0], -1, {}};
        e.text = last ? "" : text;
        if (g.text.answer != nullptr) {
          splitter.push(e.text, e.parts);
          if (last) splitter.finish(false, e.parts);
        }
        if (last) e.finish = Finish::kStop;
        e.vector.assign(r.pooled != nullptr ? model.vector_size : 0, 0.25f);
        require(!answer->complete());
        stream += answer->take(p, e);
      }
    }
  }
  require(answer->complete());
  if (!r.stream) {
    parse_json_strictly(answer->whole(), "answer");
    return;
  }
  stream += answer->stream_end();
  check_stream(stream);
}

void check_request(ApiRequest r, const ServedModel& model, const std::string& text) {
  const Request& g = r.generation;
  const SamplingParams& s = g.sampling;
  require(g.n >= 1 && g.n <= 16 && s.temperature >= 0 && s.temperature <= 100);
  require(s.top_p >= 0 && s.top_p <= 1 && s.top_k >= 0 && s.logprobs >= -1 && s.logprobs <= 20);
  require(g.text.stops.size() <= 32 && s.logit_bias.size() <= 1024);
  const std::vector<Request> prompts = prepare_request(r, model);
  require(!prompts.empty() && prompts.size() <= (r.pooled != nullptr ? kMostTexts : kMostPrompts));
  for (const Request& p : prompts)
    require(!p.prompt.empty() && p.prompt.size() + p.max_new <= model.context);
  check_answer(r, prompts, model, text);
}

constexpr Endpoint kGenerating[] = {Endpoint::kChat,       Endpoint::kCompletion,
                                    Endpoint::kMessages,   Endpoint::kResponses,
                                    Endpoint::kEmbeddings, Endpoint::kRerank};

// What a call does is refused in words, or done.
template <class Call>
void refused_or(const Call& call) {
  try {
    call();
  } catch (const ApiError& e) {
    require(e.status == 400 || e.status == 404);
    parse_json_strictly(error_json(e), "error");
  }
}

}  // namespace

FUZZ_TARGET(request) {
  static const Models& models = *new Models;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string text = unicode::lossy(bytes);
  for (const ServedModel& model : models.all) {
    for (const Endpoint endpoint : kGenerating)
      refused_or([&] { check_request(parse_request(bytes, endpoint, model), model, text); });
    if (&model != &models.all[0]) continue;
    for (const auto& [endpoint, make] : {std::pair{Endpoint::kTokenize, &tokenize_answer},
                                         std::pair{Endpoint::kDetokenize, &detokenize_answer},
                                         std::pair{Endpoint::kMessages, &count_tokens_answer}})
      refused_or([&, endpoint = endpoint, make = make] {
        parse_json_strictly(make(parse_body(bytes, endpoint, model), model), "answer");
      });
  }
  return 0;
}

}  // namespace moebius::fuzz_request
