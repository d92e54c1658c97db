// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the body of a request. It is refused with words and a status, or every
// number of what comes out is within its range and the answer to it is JSON.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "fuzz/byte_tokenizer.h"
#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/request.h"

namespace {

using namespace moebius;

void check_request(ApiRequest r, const ServedModel& model, const TokenTexts& texts) {
  const GenerationRequest& g = r.generation;
  require(g.choices >= 1 && g.choices <= 16 && g.temperature >= 0 && g.temperature <= 100);
  require(g.top_p >= 0 && g.top_p <= 1 && g.top_k >= 0 && g.logprobs >= -1 && g.logprobs <= 20);
  require(g.stops.size() <= 32 && g.logit_bias.size() <= 1024);
  const std::vector<GenerationRequest> prompts = prepare(r, model);
  require(!prompts.empty() && prompts.size() <= 128);
  ApiAnswer answer(r, model, texts, prompts, 1);
  for (size_t p = 0; p < prompts.size(); ++p) {
    require(prompts[p].prompt.size() + prompts[p].max_new <= model.context);
    ChoiceText text = choice_text(*model.tokenizer, prompts[p]);
    GenerationEvent e;
    e.tokens.push_back({prompts[p].prompt[0], -1, {}});
    e.text = text.push(prompts[p].prompt[0]);
    e.text += text.finish(true);
    e.end = EndReason::kLength;
    for (e.choice = 0; e.choice < g.choices; ++e.choice) {
      const std::string events = answer.take(p, e);
      for (std::string_view out = events; !out.empty();) {
        const size_t end = out.find("\n\n");
        require(out.starts_with("data: ") && end != std::string_view::npos);
        parse_json_strictly(out.substr(6, end - 6), "event");
        out.remove_prefix(end + 2);
      }
    }
  }
  require(answer.complete());
  if (!r.stream) parse_json_strictly(answer.whole(), "answer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = byte_tokenizer();
  static const TokenTexts texts(tokenizer);
  ServedModel model;
  model.name = "m";
  model.tokenizer = &tokenizer;
  model.context = 512;
  model.vocab = 256;
  model.slots = 16;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint :
       {Endpoint::kChat, Endpoint::kCompletion, Endpoint::kTokenize, Endpoint::kDetokenize}) {
    try {
      RequestBody body = parse_body(bytes, endpoint, model);
      if (endpoint == Endpoint::kChat) check_request(parse_chat_request(body, model), model, texts);
      if (endpoint == Endpoint::kCompletion)
        check_request(parse_completion_request(std::move(body), model), model, texts);
      if (endpoint == Endpoint::kTokenize)
        parse_json_strictly(tokenize_answer(body, model), "answer");
      if (endpoint == Endpoint::kDetokenize)
        parse_json_strictly(detokenize_answer(body, model), "answer");
    } catch (const ApiError& e) {
      require(e.status == 400 || e.status == 404);
      parse_json_strictly(error_json(e), "error");
    }
  }
  return 0;
}
