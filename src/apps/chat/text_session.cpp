// SPDX-License-Identifier: Apache-2.0
// Runs one request at a time through the engine and turns its tokens into text as they come.
#include "apps/chat/text_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "apps/chat/terminal.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/manners.h"
#include "base/error.h"
#include "runtime/memory.h"
#include "runtime/roofs.h"
#include "serve/metrics.h"
#include "serve/token_text.h"
#include "text/answer/answer_message.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;
EngineOptions session_engine_options(const RunCommandOptions& o, OpenModel& open, KvDisk* disk) {
  EngineOptions e = engine_options(o.engine, open, o.context);
  use_kv_dir(disk, o.model, open, e);
  return e;
}

ModelOptions session_model_options(const RunCommandOptions& o, const Checkpoint& checkpoint,
                                   RouteRecorder* routes) {
  ModelOptions options = model_options_of(o.model, checkpoint, o.context);
  options.tap = routes;
  return options;
}

// Words for the reasons of an answer's end, in the order of Finish.
constexpr const char* kWords[] = {"length", "stop", "length", "context", "interrupted", "error"};
static_assert(std::size(kWords) == kFinishes);

}  // namespace

void add(Answer& total, const Answer& a) {
  total.tokens.insert(total.tokens.end(), a.tokens.begin(), a.tokens.end());
  total.prompt_tokens += a.prompt_tokens;
  total.cached_tokens += a.cached_tokens;
  total.decode_steps += a.decode_steps;
  total.prompt_seconds += a.prompt_seconds;
  total.decode_seconds += a.decode_seconds;
  total.answers += a.answers;
  total.finish = a.finish;
}

// Compiles the grammar of calls before the weights are loaded, because a schema may be refused.
std::optional<TextSession::Tools> TextSession::tools_of(const RunCommandOptions& options,
                                                        const Tokenizer* tokenizer) {
  if (options.tools.is_null()) return std::nullopt;
  Tools out{tool_set_of(options.tools),
            choose_answer_markup(
                ChatTemplates::from_folder(options.model.folder, options.model.chat_template),
                *tokenizer, options.tool_format),
            {}};
  out.demand = call_demand(*out.set, options.tool_choice);
  try {
    call_grammar(*out.markup.rules(out.set, ""), out.demand, *tokenizer);
  } catch (const GrammarError& e) {
    throw UsageError(e.what());
  }
  return out;
}

TextSession::TextSession(const RunCommandOptions& options, std::optional<Tokenizer> given,
                         const std::function<void(const ModelConfig&)>& check)
    : options_(options),
      tokenizer_(std::move(given)),
      tools_(tools_of(options, tokenizer())),
      disk_(open_kv_dir(options.kv_dir, options.model,
                        [](const std::string& words) { warning("{}", words); })),
      checkpoint_(open_to_run(options.model.folder,
                              [&](const ModelConfig& config) {
                                if (tokenizer_)
                                  tokenizer_->check_fits(static_cast<size_t>(config.vocab));
                                check(config);
                              })),
      routes_(options.route_trace.empty()
                  ? nullptr
                  : std::make_unique<RouteRecorder>(options.route_trace, checkpoint_)),
      open_(checkpoint_, session_model_options(options, checkpoint_, routes_.get()),
            options.model.ranks, thread_count(options.model.run)),
      defaults_(read_generation_defaults(
          options.model.folder,
          [&](std::string_view t) -> std::optional<int32_t> {
            return tokenizer_ ? tokenizer_->token_to_id(t) : std::nullopt;
          },
          open_.model->vocab())),
      engine_(*open_.model, tokenizer(), session_engine_options(options, open_, disk_.get())) {
  say_budget(engine_.engine(), checkpoint_, options.context);
}

TextSession::~TextSession() {
  try {
    keep_kv_dir(disk_.get(), engine_.engine());
  } catch (const std::exception& e) {
    try {
      warning("--kv-dir: {}", e.what());
    } catch (const std::exception&) {  // no memory for the message
    }
  }
}

void TextSession::finish_trace() const {
  if (routes_ != nullptr) routes_->finish();
}

// Holds one answer in progress.
class TextSession::Run {
 public:
  Run(TextSession& session, const std::function<void(std::string_view)>& show)
      : session_(session), show_(show) {}

  Answer go(std::vector<int32_t> prompt) {
    const RunCommandOptions& o = session_.options_;
    const GenerationDefaults& d = session_.defaults_;
    answer_.prompt = prompt;
    answer_.prompt_tokens = prompt.size();
    Request request;
    request.prompt = std::move(prompt);
    request.sampling = sampling_params(o, d);
    request.max_new = o.most_new() < 0 ? SIZE_MAX : static_cast<size_t>(o.most_new());
    request.stop_tokens = d.eos;
    request.ignore_stop = o.ignore_eos;
    TextRules& rules = request.text;
    rules.stops = o.stop;
    rules.stops.insert(rules.stops.end(), d.stop_strings.begin(), d.stop_strings.end());
    rules.grammar = o.grammar;
    rules.end_tokens = d.eos;
    if (session_.tools_) add_tools(*session_.tools_, request);
    id_ = session_.engine_.add(std::move(request));
    start_ = Clock::now();
    if (o.most_new() != 0) read_prompt();
    while (!done_) take(step());
    answer_.decode_seconds = seconds_since(start_);
    if (session_.tools_) answer_.message = message_of(session_.tools_->markup, events_);
    return std::move(answer_);
  }

 private:
  void add_tools(const Tools& tools, Request& request) {
    TextRules& rules = request.text;
    rules.answer = tools.markup.rules(tools.set, prompt_end(*session_.tokenizer_, request.prompt));
    rules.grammar = call_grammar(*rules.answer, tools.demand, *session_.tokenizer_);
    const auto& more = tools.markup.stop_tokens;
    request.stop_tokens.insert(request.stop_tokens.end(), more.begin(), more.end());
  }

  void read_prompt() {
    const Engine& engine = session_.engine_.engine();
    size_t left = engine.prompt_left();
    Progress progress("prompt", left, /*bytes=*/false, Progress::Last::kErase);
    while (!done_ && left > 0) {
      const std::vector<StepResult> events = step();
      progress.advance(left - std::min(left, engine.prompt_left()));
      left = engine.prompt_left();
      if (left == 0) progress.finish();  // ends the bar, so that the first token has a free line
      take(events);
    }
  }

  std::vector<StepResult> step() {
    if (interrupt_seen()) session_.engine_.cancel(id_);
    return session_.engine_.step().events;
  }

  void take(const std::vector<StepResult>& events) {
    for (const StepResult& e : events) {
      answer_.cached_tokens = e.cached_tokens;
      if (e.choice) time_token();
      if (e.choice && !e.stop_token) keep(*e.choice);
      answer_.text += e.text;
      if (!e.text.empty()) show_(e.text);
      for (const AnswerEvent& part : e.parts) keep_part(part);
      if (e.finish == Finish::kNone) continue;
      answer_.finish = kWords[static_cast<size_t>(e.finish)];
      if (called_ && answer_.finish == "stop") answer_.finish = "tool_calls";
      answer_.error = e.error;
      done_ = true;
    }
  }

  // Prints reasoning to stderr: it is no part of the answer, but a user may wait for it to end.
  void keep_part(const AnswerEvent& part) {
    if (part.kind == AnswerEvent::Kind::kReasoning && !manners().quiet) put_on_stderr(part.text);
    called_ = called_ || (part.kind == AnswerEvent::Kind::kCallEnd && part.whole);
    add_event(events_, part);
  }

  void time_token() {
    if (!std::exchange(first_, false)) {
      ++answer_.decode_steps;
      return;
    }
    answer_.prompt_seconds = seconds_since(start_);
    start_ = Clock::now();
  }

  void keep(const TokenChoice& choice) {
    answer_.tokens.push_back(choice.token);
    if (session_.options_.logprobs) answer_.choices.push_back(choice);
    if (!session_.tokenizer_)
      show_(fmt::format("{}{}", answer_.tokens.size() > 1 ? " " : "", choice.token));
  }

  TextSession& session_;
  const std::function<void(std::string_view)>& show_;
  Answer answer_;
  Clock::time_point start_;
  uint64_t id_ = 0;
  AnswerEvents events_;  // used with tools
  bool first_ = true, done_ = false, called_ = false;
};

Answer TextSession::answer(std::vector<int32_t> prompt,
                           const std::function<void(std::string_view)>& show) {
  return Run(*this, show).go(std::move(prompt));
}

Statistics TextSession::statistics(const Answer& a) {
  Statistics s;
  if (a.prompt_seconds > 0)
    s.prompt_rate = static_cast<double>(a.prompt_tokens - a.cached_tokens) / a.prompt_seconds;
  if (a.decode_steps > 0 && a.decode_seconds > 0)
    s.decode_rate = static_cast<double>(a.decode_steps) / a.decode_seconds;
  s.gbs = s.decode_rate * static_cast<double>(open_.model->weight_bytes_per_token()) * 1e-9;
  if (!roof_and_peak_) {
    const uint64_t peak = peak_resident_bytes();
    // Weights are read from the memory of this device.
    const bool cpu = options_.model.run.device == "cpu";
    roof_and_peak_ = {cpu ? brief_read_roof(open_.pool) : 0.0, peak};
  }
  std::tie(s.roof_gbs, s.peak_memory) = *roof_and_peak_;
  return s;
}

std::string TextSession::summary(const Answer& a, const Statistics& s) const {
  const std::string cached =
      a.cached_tokens == 0 ? "" : fmt::format(" ({} cached)", a.cached_tokens);
  const std::string limit =
      a.finish == "length" ? fmt::format(" (-n {})", options_.most_new()) : "";
  const std::string share = s.roof_gbs > 0
                                ? fmt::format(", {:.1f} % of the memory bandwidth of {:.1f} GB/s",
                                              s.percent_of_roof(), s.roof_gbs)
                                : "";
  const auto disk = engine_.engine().snapshot().last.backend.experts;
  const double waited = disk ? static_cast<double>(disk->waited) * 1e-9 : 0.0;
  const std::string experts =
      disk ? fmt::format(
                 ", {:.0f} % of the time waiting for the disk, {:.0f} % of experts in memory",
                 100 * waited / std::max(1e-9, a.prompt_seconds + a.decode_seconds),
                 100 * disk->counts.hit_rate())
           : "";
  return fmt::format(
      "[load {:.2f} s, first token {:.3f} s, {:.1f} tokens/s; {}{} at {:.1f}/s, {}; {:.2f} GB/s "
      "of weights{}{}; peak memory {}; finish: {}{}]",
      open_.load_seconds, a.prompt_seconds / static_cast<double>(a.answers), s.decode_rate,
      counted(a.prompt_tokens, "prompt token"), cached, s.prompt_rate,
      counted(a.tokens.size(), "new token"), s.gbs, share, experts, human_bytes(s.peak_memory),
      a.finish, limit);
}

Json TextSession::to_json(const Answer& a, const Statistics& s) const {
  const auto ids = [](const std::vector<int32_t>& list) {
    Json out = Json::array();
    for (const int32_t t : list) out.push(static_cast<int64_t>(t));
    return out;
  };
  Json j = Json::object();
  if (tokenizer_) j.set("text", a.text);
  if (!a.message.is_null()) j.set("message", a.message);
  j.set("tokens", ids(a.tokens));
  j.set("prompt_ids", ids(a.prompt));
  j.set("prompt_tokens", a.prompt_tokens);
  j.set("cached_tokens", a.cached_tokens);
  j.set("seed", options_.seed);
  j.set("finish", a.finish);
  if (!a.error.empty()) j.set("error", a.error);
  if (options_.logprobs) {
    const auto entry = [&](int32_t token, float logprob) {
      Json one = Json::object(
          {{"token", static_cast<int64_t>(token)}, {"logprob", static_cast<double>(logprob)}});
      if (tokenizer_) one.set("text", shown_token(tokenizer_->token_bytes(token)));
      return one;
    };
    Json list = Json::array();
    for (const TokenChoice& c : a.choices) {
      Json one = entry(c.token, c.logprob), top = Json::array();
      for (const auto& [token, logprob] : c.alternatives) top.push(entry(token, logprob));
      one.set("top", std::move(top));
      list.push(std::move(one));
    }
    j.set("logprobs", std::move(list));
  }
  j.set("prompt_seconds", a.prompt_seconds);
  j.set("decode_seconds", a.decode_seconds);
  j.set("load_seconds", open_.load_seconds);
  j.set("prompt_tokens_per_s", s.prompt_rate);
  j.set("decode_tokens_per_s", s.decode_rate);
  j.set("gbs", s.gbs);
  j.set("roof_gbs", s.roof_gbs);
  j.set("percent_of_roof", s.percent_of_roof());
  j.set("peak_memory_bytes", s.peak_memory);
  j.set("kv_budget_bytes", engine_.engine().kv_bytes());
  if (const auto e = engine_.engine().snapshot().last.backend.experts)
    j.set("experts", expert_figures(*e));
  return j;
}

}  // namespace moebius
