// SPDX-License-Identifier: Apache-2.0
// One request at a time goes through the engine; its tokens become text as they come.
#include "apps/text_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "apps/interrupt.h"
#include "apps/manners.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "runtime/memory.h"
#include "runtime/roofs.h"
#include "text/stop.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

std::optional<Tokenizer> tokenizer_of(const std::string& folder, bool needed) {
  try {
    return Tokenizer::from_folder(folder);
  } catch (const Error& e) {
    if (needed) throw;
    note("{}; the answer is printed as ids", e.what());
    return std::nullopt;
  }
}

double read_roof(ThreadPool& pool) {
  double gbs = 0;
  try {
    RoofMemory memory(pool, RoofMemory::Effort::kBrief);
    for (const size_t streams : {1u, 2u, 4u}) gbs = std::max(gbs, memory.read(streams));
  } catch (const std::exception&) {
    return 0;  // no memory left to measure with: the answer stands, the figure is 0
  }
  return gbs;
}

const char* word_for(Finish finish) {
  switch (finish) {
    case Finish::kStopToken:
    case Finish::kStopText:
      return "stop";
    case Finish::kContext:
      return "context";
    case Finish::kCancelled:
      return "interrupted";
    case Finish::kError:
      return "error";
    default:
      return "length";
  }
}

EngineOptions engine_options(const RunCommandOptions& options, OpenModel& open, size_t vocab) {
  EngineOptions o;
  const int64_t trained = open.checkpoint.config().max_positions;
  o.context =
      options.context != 0 ? options.context : static_cast<size_t>(std::max<int64_t>(0, trained));
  o.vocab = vocab;
  o.pool = &open.pool;
  set_engine_options(options.engine, o);
  return o;
}

}  // namespace

void add(Answer& total, const Answer& a) {
  total.tokens.insert(total.tokens.end(), a.tokens.begin(), a.tokens.end());
  total.prompt_tokens += a.prompt_tokens;
  total.cached_tokens += a.cached_tokens;
  total.decode_steps += a.decode_steps;
  total.prompt_seconds += a.prompt_seconds;
  total.decode_seconds += a.decode_seconds;
  total.finish = a.finish;
}

TextSession::TextSession(const RunCommandOptions& options, bool text)
    : options_(options),
      tokenizer_(tokenizer_of(options.model.folder, text)),
      open_(options.model, options.context),
      defaults_(read_generation_defaults(
          options.model.folder,
          [&](std::string_view t) -> std::optional<int32_t> {
            return tokenizer_ ? tokenizer_->token_to_id(t) : std::nullopt;
          },
          open_.model->vocab())),
      engine_(*open_.model,
              engine_options(options, open_, tokenizer_ ? tokenizer_->vocab_size() : 0)) {
  if (tokenizer_) tokenizer_->check_fits(open_.model->vocab());
  const int64_t trained = open_.checkpoint.config().max_positions;
  if (trained > 0 && options.context > static_cast<size_t>(trained))
    fmt::print(stderr,
               "moebius: warning: --ctx {} is beyond the {} tokens that the model was trained "
               "for; what it says there may make no sense\n",
               options.context, trained);
  say_budget(engine_);
}

// One answer in the making.
class TextSession::Run {
 public:
  Run(TextSession& session, const std::function<void(std::string_view)>& show)
      : session_(session), show_(show), stop_(stops_of(session)) {
    if (session.tokenizer_) stream_.emplace(*session.tokenizer_, true);
  }

  Answer go(std::vector<int32_t> prompt) {
    answer_.prompt = prompt;
    answer_.prompt_tokens = prompt.size();
    Request request;
    request.prompt = std::move(prompt);
    request.sampling = sampling_params(session_.options_, session_.defaults_);
    const int64_t most = session_.options_.max_new;
    request.max_new = most < 0 ? SIZE_MAX : static_cast<size_t>(most);
    request.stop_tokens = session_.defaults_.eos;
    request.ignore_stop = session_.options_.ignore_eos;
    id_ = session_.engine_.add(std::move(request));
    start_ = Clock::now();
    try {
      read_prompt();
      while (!done_) step();
    } catch (const Error& e) {  // the weights or the input are broken
      answer_.finish = "error";
      answer_.error = e.what();
    }
    session_.engine_.cancel(id_);  // what it has computed stays for the next turn
    while (!session_.engine_.idle() && session_.engine_.step().failure.empty()) {
    }
    answer_.decode_seconds = seconds_since(start_);
    if (stream_) give(stop_.push(stream_->finish()));
    give(stop_.finish());
    return std::move(answer_);
  }

 private:
  static std::vector<std::string> stops_of(const TextSession& session) {
    std::vector<std::string> stops = session.options_.stop;
    const auto& more = session.defaults_.stop_strings;
    stops.insert(stops.end(), more.begin(), more.end());
    return stops;
  }

  void read_prompt() {
    size_t left = session_.engine_.prompt_left();
    if (session_.options_.max_new == 0) return;
    Progress progress("prompt", left, false, Progress::Last::kErase);
    while (!done_ && left > 0) {
      std::vector<StepResult> results = step_engine();
      progress.advance(left - session_.engine_.prompt_left());
      left = session_.engine_.prompt_left();
      if (left == 0) progress.finish();  // the first token is shown on a free line
      take(results);
    }
  }

  void step() { take(step_engine()); }

  std::vector<StepResult> step_engine() {
    if (interrupt_seen()) session_.engine_.cancel(id_);
    StepReport report = session_.engine_.step();
    if (!report.failure.empty()) fail("{}", report.failure);
    return std::move(report.results);
  }

  void take(const std::vector<StepResult>& results) {
    for (const StepResult& r : results) {
      answer_.cached_tokens = r.cached_tokens;
      if (r.choice) time_token();
      if (r.choice && r.finish != Finish::kStopToken) keep(*r.choice);
      if (done_) return;  // a stop string
      if (r.finish == Finish::kNo) continue;
      answer_.finish = word_for(r.finish);
      answer_.error = r.error;
      done_ = true;
    }
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
    if (!stream_) {
      show_(fmt::format("{}{}", answer_.tokens.size() > 1 ? " " : "", choice.token));
      return;
    }
    give(stop_.push(stream_->push(choice.token)));
    if (!stop_.stopped()) return;
    answer_.finish = "stop";
    done_ = true;
  }

  void give(const std::string& text) {
    answer_.text += text;
    if (!text.empty()) show_(text);
  }

  TextSession& session_;
  const std::function<void(std::string_view)>& show_;
  StopMatcher stop_;
  std::optional<Tokenizer::Stream> stream_;
  Answer answer_;
  Clock::time_point start_;
  uint64_t id_ = 0;
  bool first_ = true, done_ = false;
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
    roof_and_peak_ = {read_roof(open_.pool), peak};
  }
  std::tie(s.roof_gbs, s.peak_memory) = *roof_and_peak_;
  return s;
}

std::string TextSession::summary(const Answer& a, const Statistics& s) const {
  return fmt::format(
      "[{} prompt tokens{} at {:.1f}/s, {} new at {:.1f}/s, {:.2f} GB/s of weights ({:.1f} % of "
      "the "
      "read roof of {:.1f} GB/s), peak memory {}, {}]",
      a.prompt_tokens,
      a.cached_tokens == 0 ? "" : fmt::format(" ({} of them known)", a.cached_tokens),
      s.prompt_rate, a.tokens.size(), s.decode_rate, s.gbs, s.percent_of_roof(), s.roof_gbs,
      human_bytes(static_cast<double>(s.peak_memory)), a.finish);
}

Json TextSession::to_json(const Answer& a, const Statistics& s) const {
  const auto ids = [](const std::vector<int32_t>& list) {
    Json out = Json::array();
    for (const int32_t t : list) out.push(static_cast<int64_t>(t));
    return out;
  };
  Json j = Json::object();
  if (tokenizer_) j.set("text", a.text);
  j.set("tokens", ids(a.tokens));
  j.set("prompt_ids", ids(a.prompt));
  j.set("prompt_tokens", static_cast<uint64_t>(a.prompt_tokens));
  j.set("cached_tokens", static_cast<uint64_t>(a.cached_tokens));
  j.set("seed", options_.seed);
  j.set("finish", a.finish);
  if (!a.error.empty()) j.set("error", a.error);
  if (options_.logprobs) {
    const auto entry = [](int32_t token, float logprob) {
      return Json::object(
          {{"token", static_cast<int64_t>(token)}, {"logprob", static_cast<double>(logprob)}});
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
  j.set("kv_budget_bytes", engine_.kv_bytes());
  return j;
}

}  // namespace moebius
