// SPDX-License-Identifier: Apache-2.0
// Implements the public C++ interface of whole models (moebius/model.hpp): a loaded model with its
// text and its threads, and an engine that turns tokens into text as they come.
#include "moebius/model.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <set>

#include "api/api.h"
#include "base/once.h"
#include "device/gpu.h"
#include "engine/draft.h"
#include "engine/sampling_choices.h"
#include "engine/text_engine.h"
#include "model/run/decoder.h"
#include "model/run/scoring.h"
#include "report/explain.h"
#include "text/answer/answer_message.h"
#include "text/answer/call_grammar.h"
#include "text/answer/past_messages.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/grammar/answer_format.h"
#include "text/tokenizer.h"

namespace moebius::llm {
namespace {

// Run `work`; errors without a place get the folder or the argument.
template <class Work>
auto about(const ErrorPlace& place, Work&& work) {
  return placing_errors([&] { return place; }, work);
}
template <class Work>
auto about_folder(const std::string& folder, Work&& work) {
  return about({"file", folder, "", "", ""}, work);
}
template <class Work>
auto about_argument(const std::string& name, Work&& work) {
  return about({"argument", "", "", "", name}, work);
}

}  // namespace

// --- text ------------------------------------------------------------------------------------------
struct Tokenizer::Impl {
  explicit Impl(const std::string& where)
      : folder(where),
        tokenizer(moebius::Tokenizer::from_folder(where)),
        templates(ChatTemplates::from_folder(where)) {}
  std::string folder;
  moebius::Tokenizer tokenizer;
  ChatTemplates templates;

  // Returns how answers are read, according to the templates.
  const AnswerMarkup& markup() const {
    markup_once.call([&] { known_markup = choose_answer_markup(templates, tokenizer); });
    return known_markup;
  }

  std::vector<TextSegment> render(const Chat& chat) const {
    if (templates.empty())
      fail_at({"file", folder, "", "", "chat_template"}, "{}: has no chat template", folder);
    const auto parsed = [](const std::string& text, const char* what) {
      return text.empty() ? Json() : parse_json_strictly(text, what);
    };
    const Json messages = parsed(chat.messages, "messages"), tools = parsed(chat.tools, "tools"),
               documents = parsed(chat.documents, "documents"), extra = parsed(chat.extra, "extra");
    if (!messages.is_array())
      fail_at({"argument", "", "", "", "messages"}, "messages are {}; expected an array",
              kind_name(messages.kind()));
    const Json repaired = repaired_messages(messages, templates, markup().tools);
    ChatInput input;
    input.messages = repaired.is_null() ? &messages : &repaired;
    if (!tools.is_null()) input.tools = &tools;
    if (!documents.is_null()) input.documents = &documents;
    if (!extra.is_null()) input.extra = &extra;
    input.add_generation_prompt = chat.add_generation_prompt;
    return render_filled(templates, input);
  }

  mutable Once markup_once;
  mutable AnswerMarkup known_markup;
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
const Tokenizer::Impl& Tokenizer::held() const { return checked_handle(impl_, "llm::Tokenizer"); }
Tokenizer Tokenizer::open(const std::string& folder) {
  return about_folder(folder, [&] { return Tokenizer(std::make_shared<const Impl>(folder)); });
}
std::vector<int32_t> Tokenizer::encode(const std::string& text, bool add_special) const {
  return held().tokenizer.encode(text, add_special);
}
std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  return held().tokenizer.decode(ids, skip_special);
}
size_t Tokenizer::vocab() const { return held().tokenizer.vocab_size(); }
std::optional<std::string> Tokenizer::token(int32_t id) const {
  return held().tokenizer.id_to_token(id);
}
std::optional<int32_t> Tokenizer::id(const std::string& token) const {
  return held().tokenizer.token_to_id(token);
}
bool Tokenizer::is_special(int32_t id) const { return held().tokenizer.is_special(id); }
bool Tokenizer::has_template() const { return !held().templates.empty(); }
std::string Tokenizer::chat_text(const Chat& chat) const { return joined(held().render(chat)); }
std::vector<int32_t> Tokenizer::chat_tokens(const Chat& chat) const {
  return held().tokenizer.encode_segments(held().render(chat), false);
}
std::string Tokenizer::chat_answer(const Chat& chat, std::span<const int32_t> tokens,
                                   bool ended) const {
  const Impl& t = held();
  const std::string prompt = joined(t.render(chat));
  const Json tools = chat.tools.empty() ? Json() : parse_json_strictly(chat.tools, "tools");
  return message_of(t.markup(),
                    events_of(t.markup(), t.tokenizer, tool_set_of(tools), prompt, tokens, ended))
      .dump();
}

struct Stream::Impl {
  std::shared_ptr<const Tokenizer::Impl> tokenizer;
  moebius::Tokenizer::Stream stream;
};
Stream::Stream(const Tokenizer& tokenizer, bool skip_special)
    : impl_(std::make_unique<Impl>(
          Impl{tokenizer.impl_, {tokenizer.held().tokenizer, skip_special}})) {}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::Impl& Stream::held() const { return checked_handle(impl_, "llm::Stream"); }
std::string Stream::push(int32_t id) { return held().stream.push(id); }
std::string Stream::finish() { return held().stream.finish(); }

// --- models ----------------------------------------------------------------------------------------
namespace {

std::optional<KvType> kv_type_named(const std::string& name) {
  static constexpr std::pair<const char*, KvType> kTypes[] = {{"bf16", KvType::kBf16},
                                                              {"f16", KvType::kF16},
                                                              {"f32", KvType::kF32},
                                                              {"int8", KvType::kInt8},
                                                              {"fp8", KvType::kFp8}};
  for (const auto& [text, type] : kTypes)
    if (name == text) return type;
  if (name.empty() || name == "auto") return std::nullopt;
  fail_at({"argument", "", "", "", "kv_dtype"},
          "kv_dtype is '{}'; expected auto, bf16, f16, f32, int8 or fp8", printable(name));
}

}  // namespace

struct Model::Impl {
  Checkpoint checkpoint;
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<DecoderModel> model;
  std::shared_ptr<const Tokenizer::Impl> tokenizer;  // null: the folder has no usable tokenizer
  std::string no_tokenizer;                          // the reason
  GenerationDefaults defaults;
  std::set<std::string> kernels;
  size_t context = 0;              // context that was asked for
  std::string speculate;           // lookup, mtp or off
  std::atomic<bool> taken{false};  // an engine uses the model

  void load(const LoadOptions& o) {
    ModelOptions mo;
    mo.pool = &runtime->pool();
    mo.policy.accept = accept_of(o.arithmetic);
    if (!o.kernel.starts_with("cuda")) mo.policy.kernel = normalize_kernel_name(o.kernel);
    mo.act = act_request_of(o.int8, o.rows, mo.policy);
    mo.type = activation_type(o.dtype, checkpoint.config().dtype);
    mo.kv_type = kv_type_named(o.kv_dtype);
    mo.context = context = o.context;
    mo.pack_dir = o.pack_dir;
    speculate = o.speculate;
    if (speculate != "lookup" && speculate != "mtp" && speculate != "off")
      fail_at({"argument", "", "", "", "speculate"},
              "speculate is '{}'; expected lookup, mtp or off", printable(speculate));
    mo.predictor = speculate == "mtp";
    take_device(o, mo);
    const ModelPlan plan = plan_model(checkpoint, mo, this_process(mo.gpu, 1));
    require_fit(plan, checkpoint.folder());
    LoadProgress progress(o.progress, bytes_to_load(checkpoint, mo.predictor));
    mo.progress = [&](uint64_t bytes) { progress.advance(bytes); };
    model = DecoderModel::load(checkpoint, plan, mo);
    progress.finish();
    if (mo.gpu.module != nullptr) return;
    for (const PlannedModule& m : plan.ranks[0].modules)
      if (m.use->choice) kernels.insert(title_of(*m.use->choice->chosen));
  }

  // Reads the options that say where the model runs.
  static void take_device(const LoadOptions& o, ModelOptions& mo) {
    const bool gpu = is_gpu_name(o.device);
    if (!gpu && !o.device.empty() && o.device != "cpu")
      fail_at({"argument", "", "", "", "device"}, "device is '{}'; expected cpu, cuda or cuda:N",
              printable(o.device));
    if (!o.experts.empty() && o.experts != "cpu" && o.experts != "auto")
      fail_at({"argument", "", "", "", "experts"}, "experts is '{}'; expected cpu or auto",
              printable(o.experts));
    if (!gpu && (!o.experts.empty() || o.gpu_memory != 0)) {
      const char* name = o.experts.empty() ? "gpu_memory" : "experts";
      fail_at({"argument", "", "", "", name}, "{} is for models on a GPU: device cuda", name);
    }
    if (gpu) {
      mo.placement = parse_placement(o.device + (o.experts == "cpu" ? ",experts=cpu" : ""));
      mo.gpu.module = &library_cuda_module(gpu_number(o.device));
      mo.gpu.memory = o.gpu_memory;
      if (o.kernel.starts_with("cuda")) {
        mo.gpu.kernel = normalize_gpu_kernel(o.kernel);
        mo.policy.kernel.clear();
      }
      mo.gpu.fit_experts = o.experts == "auto";
    }
  }

  void read_text() {
    const std::string& folder = checkpoint.folder();
    try {
      tokenizer = std::make_shared<const Tokenizer::Impl>(folder);
      tokenizer->tokenizer.check_fits(model->vocab());
    } catch (const Error& e) {
      tokenizer = nullptr;
      no_tokenizer = e.what();
    }
    defaults = read_generation_defaults(
        folder,
        [&](std::string_view t) {
          return tokenizer ? tokenizer->tokenizer.token_to_id(t) : std::nullopt;
        },
        model->vocab());
  }

  size_t trained() const {
    return static_cast<size_t>(std::max<int64_t>(0, checkpoint.config().max_positions));
  }
};

Model::Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Impl& Model::held() const { return checked_handle(impl_, "llm::Model"); }

Model Model::load(const std::string& folder, const LoadOptions& options) {
  return about_folder(folder, [&] {
    auto impl = std::make_shared<Impl>();
    impl->checkpoint = Checkpoint::open(folder);
    impl->runtime = runtime_of(options.threads, options.runtime);
    impl->load(options);
    impl->read_text();
    return Model(std::move(impl));
  });
}

size_t Model::vocab() const { return held().model->vocab(); }
size_t Model::context() const { return held().trained(); }

std::string Model::info_json() const {
  const Impl& m = held();
  Json kernels = Json::array(), warnings = Json::array();
  for (const std::string& k : m.kernels) kernels.push(k);
  for (const std::string& w : m.checkpoint.warnings()) warnings.push(w);
  Json j = Json::object();
  j.set("architecture", m.checkpoint.config().architecture);
  j.set("layers", static_cast<uint64_t>(m.model->layers()));
  j.set("vocab", static_cast<uint64_t>(m.model->vocab()));
  j.set("context", static_cast<uint64_t>(m.trained()));
  j.set("packed_bytes", m.model->packed_bytes());
  j.set("kv_bytes_per_token", m.model->kv_plan().bytes_per_token());
  j.set("threads", static_cast<uint64_t>(m.runtime->threads()));
  j.set("kernels", std::move(kernels));
  j.set("warnings", std::move(warnings));
  return j.dump();
}

bool Model::has_tokenizer() const { return held().tokenizer != nullptr; }
Tokenizer Model::tokenizer() const {
  if (!has_tokenizer())
    fail_at({"file", held().checkpoint.folder(), "", "", ""}, "{}", held().no_tokenizer);
  return Tokenizer(held().tokenizer);
}

void Model::logits(std::span<const int32_t> tokens, std::span<float> to) const {
  DecoderModel& model = *held().model;
  if (tokens.empty() || to.size() / model.vocab() != tokens.size() ||
      to.size() % model.vocab() != 0)
    fail_at({"argument", "", "", "", "tokens"},
            "{} tokens and room for {} logits; expected at least one token and {} logits for each",
            tokens.size(), to.size(), model.vocab());
  about_argument("tokens", [&] {
    each_logits(model, tokens, [&](std::span<const float> rows) {
      std::copy(rows.begin(), rows.end(), to.begin());
      to = to.subspan(rows.size());
    });
  });
}

Perplexity Model::perplexity(std::span<const int32_t> tokens, size_t context) const {
  if (tokens.size() < 2 || context == 0)
    fail_at({"argument", "", "", "", "tokens"},
            "{} tokens in windows of {}; expected at least 2 tokens, an input and the token after "
            "it, and windows of at least 1",
            tokens.size(), context);
  return about_argument("tokens", [&] {
    check_tokens(tokens, vocab());
    const std::vector<double> losses = losses_of(Windows(tokens, context, 0), *held().model,
                                                 held().runtime->pool(), [](size_t) {});
    const MeanAndError loss = mean_and_error(losses);
    return Perplexity{loss.mean, loss.error, std::exp(loss.mean), losses.size()};
  });
}

// --- generation ------------------------------------------------------------------------------------
namespace {

// The public enumeration has the engine's values.
constexpr bool same(Finish a, moebius::Finish b) {
  return static_cast<size_t>(a) == static_cast<size_t>(b);
}
static_assert(kFinishes == 6 && same(Finish::kNone, moebius::Finish::kNone) &&
              same(Finish::kStop, moebius::Finish::kStop) &&
              same(Finish::kLength, moebius::Finish::kLength) &&
              same(Finish::kContext, moebius::Finish::kContext) &&
              same(Finish::kCancelled, moebius::Finish::kCancelled) &&
              same(Finish::kError, moebius::Finish::kError));

Event event_of(StepResult& t) {
  Event e;
  e.id = t.id;
  e.choice = t.index;
  e.cached_tokens = t.cached_tokens;
  e.error = std::move(t.error);
  e.finish = static_cast<Finish>(t.finish);
  e.text = std::move(t.text);
  e.stop_text = std::move(t.stop_text);
  if (t.choice) {
    (t.stop_token ? e.stop_token : e.token) = t.choice->token;
    e.logprob = t.choice->logprob;
    e.top = std::move(t.choice->alternatives);
  }
  return e;
}

SamplingParams params_of(const Sampling& s, const GenerationDefaults& defaults) {
  SamplingChoices choices;
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) choices.name = s.name;
#include "base/sampling_numbers.inc"
  choices.logprobs = s.logprobs;
  choices.seed = s.seed;
  SamplingParams p = sampling_params(choices, defaults);
  p.min_tokens = static_cast<int>(std::min<uint64_t>(s.min_tokens, INT32_MAX));
  return p;
}

constexpr size_t kMaxAnswers = 1024;

}  // namespace

struct Engine::Impl {
  Impl(std::shared_ptr<Model::Impl> m, const EngineOptions& o)
      : model(std::move(m)),
        lease(*model),
        engine(*model->model, model->tokenizer ? &model->tokenizer->tokenizer : nullptr,
               options_of(*model, o)) {}

  static moebius::EngineOptions options_of(Model::Impl& model, const EngineOptions& o) {
    moebius::EngineOptions out;
    const size_t asked = o.context != 0 ? o.context : model.context;
    out.context = asked != 0 ? asked : model.trained();
    out.parallel = std::max<size_t>(1, o.parallel);
    out.kv_bytes = o.kv_bytes;
    out.max_step = o.max_step;
    out.drafts = model.speculate == "off" ? 0 : kMostDrafts;
    out.backend_drafts = model.speculate == "mtp";
    out.pool = &model.runtime->pool();
    out.context_name = "context=";
    out.kv_name = "kv_gib= (kv_bytes in C and C++)";
    return out;
  }

  // Reserves a model for one engine: its blocks belong to that engine.
  struct Lease {
    explicit Lease(Model::Impl& m) : model(m) {
      if (model.taken.exchange(true))
        fail_at({"state", "", "", "", ""}, "this model has an engine already; free that one first");
    }
    ~Lease() { model.taken = false; }
    Model::Impl& model;
  };

  // Returns the grammar of an answer; null: any text is allowed.
  GrammarPtr grammar_of(const Sampling& s) {
    std::string field = !s.json_schema.empty() ? "json_schema"
                        : !s.regex.empty()     ? "regex"
                                               : "choice";
    return about_argument(field, [&]() -> GrammarPtr {
      const AnswerFormat f = format_of_texts(s.json_schema, s.regex, s.choice);
      if (!f.given()) return nullptr;
      if (s.ignore_eos || s.min_tokens > 0)
        fail(
            "{}: an answer in a format ends where the format does: neither "
            "ignore_eos nor min_tokens can be asked for",
            field);
      return grammars.get(f);
    });
  }

  // Sets the tools that may be called, and what ends an answer with calls. An answer without an end
  // is not masked.
  void add_tools(const Sampling& s, moebius::Request& r) {
    if (s.tools.empty()) return;
    about_argument("tools", [&] {
      if (!model->tokenizer) fail("tools need a tokenizer: {}", model->no_tokenizer);
      const AnswerMarkup& markup = model->tokenizer->markup();
      if (markup.tools == nullptr)
        fail("the chat template names no known format of calls, so tools cannot be called");
      const auto set = tool_set_of(parse_json_strictly(s.tools, "tools"));
      if (!set) return;
      const CallDemand demand = call_demand(*set, s.tool_choice);
      const bool endless = s.ignore_eos || s.min_tokens > 0;
      GrammarPtr& grammar = r.text.grammar;
      if (demand.required && (endless || grammar != nullptr))
        fail(
            "tool_choice asks for calls: neither another form of the answer nor ignore_eos "
            "nor min_tokens can be asked for");
      if (!s.ignore_eos)
        r.stop_tokens.insert(r.stop_tokens.end(), markup.stop_tokens.begin(),
                             markup.stop_tokens.end());
      if (endless || grammar != nullptr) return;
      const moebius::Tokenizer& tokenizer = model->tokenizer->tokenizer;
      grammar =
          call_grammar(*markup.rules(set, prompt_end(tokenizer, r.prompt)), demand, tokenizer);
    });
  }

  std::shared_ptr<Model::Impl> model;
  Lease lease;
  TextEngine engine;
  GrammarCache grammars;
};

Engine::Engine(const Model& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>((static_cast<void>(model.held()), model.impl_), options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::Impl& Engine::held() const { return checked_handle(impl_, "llm::Engine"); }

uint64_t Engine::add(const Request& request) {
  Impl& self = held();
  const Sampling& s = request.sampling;
  const GenerationDefaults& d = self.model->defaults;
  if (s.n < 1 || s.n > kMaxAnswers)
    fail_at({"argument", "", "", "", "n"}, "n is {}; expected 1 to {}", s.n, kMaxAnswers);
  if (!self.model->tokenizer && !s.stop.empty())
    fail_at({"argument", "", "", "", "stop"}, "stop texts need a tokenizer: {}",
            self.model->no_tokenizer);
  moebius::Request r;
  TextRules& rules = r.text;
  rules.stops = s.stop;
  rules.include_stop = s.include_stop;
  rules.skip_special = s.skip_special;
  rules.grammar = self.grammar_of(s);
  rules.end_tokens = d.eos;
  rules.stops.insert(rules.stops.end(), d.stop_strings.begin(), d.stop_strings.end());
  r.prompt = request.prompt;
  r.sampling = params_of(s, d);
  const auto most = static_cast<uint64_t>(std::max<int64_t>(0, d.max_new_tokens.value_or(256)));
  r.max_new = static_cast<size_t>(s.max_tokens.value_or(most));
  r.stop_tokens = s.stop_tokens;
  if (!s.ignore_eos) r.stop_tokens.insert(r.stop_tokens.end(), d.eos.begin(), d.eos.end());
  r.n = s.n;
  self.add_tools(s, r);
  return about_argument("prompt", [&] { return self.engine.add(std::move(r)); });
}

void Engine::cancel(uint64_t id) { held().engine.cancel(id); }
bool Engine::idle() const { return held().engine.idle(); }
size_t Engine::context() const { return held().engine.engine().longest(); }

std::vector<Event> Engine::step() {
  TextStep step = held().engine.step();
  std::vector<Event> events;
  for (StepResult& e : step.events) events.push_back(event_of(e));
  return events;
}

}  // namespace moebius::llm
