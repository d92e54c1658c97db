// SPDX-License-Identifier: Apache-2.0
#include "engine/text_engine.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "base/error.h"
#include "base/out_of_memory.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;
// Wait before a step is tried again; it doubles each time.
constexpr std::chrono::milliseconds kFirstPause{5};

EngineOptions with_vocab(EngineOptions o, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr) o.vocab = tokenizer->vocab_size();
  return o;
}

// Follows one answer through its grammar. The mask of the next token is computed right after a
// token was drawn, while sequences are still sampled side by side.
class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<TokenMasks> masks, GrammarPtr grammar,
                    std::vector<int32_t> ends)
      : masks_(std::move(masks)), matcher_(std::move(grammar)), ends_(std::move(ends)) {}
  const TokenMask& mask() override {
    if (!std::exchange(found_, true)) masks_->find(matcher_, ends_, first_, mask_);
    return mask_;
  }
  bool complete() const override { return matcher_.may_end(); }
  void accept(int32_t token) override {
    if (!masks_->accept(matcher_, token, first_))
      fail("grammar_dead_end: token {} does not fit the answer's format", token);
    if (!masks_->trie().bytes(token).empty()) first_ = false;
    found_ = false;
    mask();
  }
  std::vector<int32_t> forced(size_t most) override {
    return masks_->forced(matcher_, first_, most);
  }

 private:
  std::shared_ptr<TokenMasks> masks_;
  GrammarMatcher matcher_;
  std::vector<int32_t> ends_;
  TokenMask mask_;
  bool first_ = true, found_ = false;
};

// Ends reasoning that has used up its tokens: writes the marker in place of the model's next
// tokens. `inner`, if there is one, restricts everything else.
class ThinkingConstraint final : public TokenConstraint {
 public:
  ThinkingConstraint(const Tokenizer& tokenizer, const TextRules& rules,
                     std::unique_ptr<TokenConstraint> inner)
      : text_(tokenizer, read_only(rules)),
        inner_(std::move(inner)),
        marker_(tokenizer.encode(rules.answer->reasoning->cut, false)),
        budget_(*rules.thinking_budget) {
    all_.listed = false;
    all_.count = tokenizer.vocab_size();
    all_.bits.assign((all_.count + 63) / 64, UINT64_MAX);
    forcing_ = budget_ == 0 && text_.reasoning();
  }
  const TokenMask& mask() override {
    if (!forcing_) return inner_ ? inner_->mask() : all_;
    one_.ids = {marker_[written_]};
    one_.count = 1;
    return one_;
  }
  bool complete() const override { return !forcing_ && (!inner_ || inner_->complete()); }
  void accept(int32_t token) override {
    text_.push(token);
    text_.take_events();
    if (inner_) inner_->accept(token);
    if (forcing_) {
      forcing_ = ++written_ < marker_.size();
    } else if (written_ == 0 && text_.reasoning() && text_.reasoning_tokens() >= budget_) {
      forcing_ = !marker_.empty();
    }
  }
  std::vector<int32_t> forced(size_t most) override {
    if (!forcing_) return inner_ ? inner_->forced(most) : std::vector<int32_t>();
    const auto rest = std::span(marker_).subspan(written_);
    return {rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(std::min(most, rest.size()))};
  }

 private:
  static TextRules read_only(const TextRules& rules) {
    TextRules out;
    out.answer = rules.answer;
    return out;
  }
  ChoiceText text_;
  std::unique_ptr<TokenConstraint> inner_;
  const std::vector<int32_t> marker_;
  const size_t budget_;
  TokenMask all_, one_;
  size_t written_ = 0;  // tokens of the marker that were written
  bool forcing_ = false;
};

}  // namespace

std::unique_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<TokenMasks> masks,
                                                         GrammarPtr grammar,
                                                         std::vector<int32_t> end_tokens) {
  return std::make_unique<GrammarConstraint>(std::move(masks), std::move(grammar),
                                             std::move(end_tokens));
}

struct TextEngine::Job {
  // Holds the text that a token completed.
  struct TokenText {
    std::string text;
    AnswerEvents parts;
    size_t reasoning_tokens;
  };
  struct Choice {
    std::optional<ChoiceText> text;  // none: the request has no text, only tokens
    std::deque<TokenText> ready;     // texts of the current step, token by token
    bool ended = false;
  };
  std::vector<Choice> choices;
  std::vector<int32_t> stop_tokens;
  const Clock::time_point added = Clock::now();
  std::atomic<double> queue_seconds{-1};  // negative: still waiting

  // Called on any thread of the engine's pool; one call at a time per choice.
  bool watch(size_t index, int32_t token) {
    Choice& c = choices[index];
    const bool stop = std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end();
    if (!c.text) return true;
    std::string text = stop ? std::string() : c.text->push(token);
    c.ready.push_back({std::move(text), c.text->take_events(), c.text->reasoning_tokens()});
    return stop || !c.text->stopped();
  }
  bool open() const {
    return std::any_of(choices.begin(), choices.end(), [](const Choice& c) { return !c.ended; });
  }
};

TextEngine::TextEngine(Backend& backend, const Tokenizer* tokenizer, EngineOptions options)
    : tokenizer_(tokenizer), engine_(backend, with_vocab(std::move(options), tokenizer)) {
  if (tokenizer != nullptr) tokenizer->check_fits(backend.vocab());
}

const std::shared_ptr<TokenMasks>& TextEngine::masks() {
  if (tokenizer_ == nullptr) fail("an answer in a format needs the model's tokenizer");
  masks_once_.call([&] { masks_ = std::make_shared<TokenMasks>(*tokenizer_); });
  return masks_;
}

uint64_t TextEngine::add(Request request) {
  const auto job = std::make_shared<Job>();
  TextRules rules = std::move(request.text);
  if (rules.grammar != nullptr) {
    if (request.ignore_stop || request.sampling.min_tokens > 0)
      fail(
          "an answer in a format ends where the format does: neither ignore_eos nor min_tokens "
          "can be asked for");
    // Special tokens have no text that could be part of a stop string.
    for (const int32_t t : request.stop_tokens)
      if (tokenizer_ != nullptr && tokenizer_->is_special(t)) rules.end_tokens.push_back(t);
    request.constraint = [masks = masks(), rules] {
      return make_grammar_constraint(masks, rules.grammar, rules.end_tokens);
    };
  }
  if (rules.thinking_budget && rules.answer && rules.answer->reasoning != nullptr &&
      tokenizer_ != nullptr)
    request.constraint = [this, rules, inner = std::move(request.constraint)] {
      return std::make_unique<ThinkingConstraint>(*tokenizer_, rules, inner ? inner() : nullptr);
    };
  rules.min_new = static_cast<size_t>(std::max(0, request.sampling.min_tokens));
  job->choices.resize(request.n);
  if (tokenizer_ != nullptr)
    for (Job::Choice& c : job->choices) c.text.emplace(*tokenizer_, rules);
  if (!request.ignore_stop) job->stop_tokens = request.stop_tokens;
  request.watch = [job](size_t index, const TokenChoice& c) { return job->watch(index, c.token); };
  request.admitted = [job] {
    job->queue_seconds = std::chrono::duration<double>(Clock::now() - job->added).count();
  };
  const std::lock_guard lock(jobs_mutex_);  // a step may report tokens before add() returns
  if (dead_) fail_at({"state", "", "", "", ""}, "{}", why_dead_);
  const uint64_t id = engine_.add(std::move(request));
  try {
    jobs_[id] = job;
  } catch (...) {
    engine_.cancel(id);
    throw;
  }
  return id;
}

void TextEngine::cancel(uint64_t id) noexcept { engine_.cancel(id); }

bool TextEngine::waiting(uint64_t id) const {
  const std::lock_guard lock(jobs_mutex_);
  const auto it = jobs_.find(id);
  return it != jobs_.end() && it->second->queue_seconds < 0;
}

TextStep TextEngine::step() {
  const std::lock_guard turn(step_mutex_);
  TextStep out;
  out.last = dead_;
  if (out.last) return out;
  StepReport report = engine_.step();
  take(report, out);
  out.figures = std::move(report.figures);
  out.failure = std::move(report.failure);
  if (out.failure.empty()) {
    failures_ = 0;
  } else if (report.lost) {
    give_up(out, fmt::format("the model can run no more steps: {}", out.failure));
  } else if (++failures_ < kMostFailures) {
    std::this_thread::sleep_for(kFirstPause * (1 << (failures_ - 1)));
  } else if (report.out_of_memory) {
    failures_ = 0;
    end_youngest(out, out.failure);
  } else {
    give_up(out, fmt::format("{} steps in a row failed, the last one: {}", failures_, out.failure));
  }
  return out;
}

void TextEngine::take(StepReport& report, TextStep& out) {
  // The engine has committed these tokens: they must be reported, whatever memory that needs.
  patiently([&] { out.events.reserve(report.results.size()); });
  const std::lock_guard lock(jobs_mutex_);
  for (StepResult& r : report.results) {
    const auto it = jobs_.find(r.id);
    if (it == jobs_.end()) continue;  // the job ended because its text failed
    try {
      add_text(*it->second, r);
      out.events.push_back(std::move(r));
    } catch (const std::exception& e) {  // sends what can still be sent
      out.events.push_back(failed_result(it->first, r.index, words_of(e)));
      if (r.finish == Finish::kNone) engine_.cancel(it->first);
    }
    it->second->choices[r.index].ended = out.events.back().finish != Finish::kNone;
    if (!it->second->open()) jobs_.erase(it);
  }
}

void TextEngine::add_text(Job& job, StepResult& e) {
  Job::Choice& choice = job.choices[e.index];
  e.queue_seconds = std::max(0.0, job.queue_seconds.load());
  if (!choice.text) return;
  if (e.choice && !choice.ready.empty()) {
    Job::TokenText& ready = choice.ready.front();
    e.text = std::move(ready.text);
    e.parts = std::move(ready.parts);
    e.reasoning_tokens = ready.reasoning_tokens;
    choice.ready.pop_front();
  }
  if (e.finish != Finish::kNone) {
    e.text += choice.text->finish(e.finish != Finish::kStop);
    for (AnswerEvent& part : choice.text->take_events()) e.parts.push_back(std::move(part));
    e.reasoning_tokens = choice.text->reasoning_tokens();
  }
  if (e.finish == Finish::kNone || !choice.text->stopped()) return;
  e.stop_text = choice.text->stop();
  // The text that was held back for more bytes of a character can complete a stop string.
  if (e.finish == Finish::kLength || e.finish == Finish::kContext) e.finish = Finish::kStop;
}

// Ends the running request that came last, or the last of all, so that its memory serves the
// others.
void TextEngine::end_youngest(TextStep& out, const std::string& why) {
  patiently([&] { out.events.reserve(out.events.size() + engine_.parallel()); });
  const std::lock_guard lock(jobs_mutex_);
  auto victim = jobs_.end();
  bool runs = false;
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    if (runs && it->second->queue_seconds < 0) continue;
    victim = it;
    runs = it->second->queue_seconds >= 0;
  }
  if (victim == jobs_.end()) return;
  engine_.cancel(victim->first);
  for (size_t i = 0; i < victim->second->choices.size(); ++i) {
    if (victim->second->choices[i].ended) continue;
    patiently([&] { out.events.push_back(failed_result(victim->first, i, why)); });
  }
  jobs_.erase(victim);
}

void TextEngine::give_up(TextStep& out, const std::string& why) {
  const std::lock_guard lock(jobs_mutex_);
  why_dead_ = why;
  out.last = dead_ = true;
  for (const auto& [id, job] : jobs_)
    for (size_t i = 0; i < job->choices.size(); ++i) {
      if (job->choices[i].ended) continue;
      StepResult end = failed_result(id, i, why);
      add_text(*job, end);
      out.events.push_back(std::move(end));
    }
  jobs_.clear();
}

}  // namespace moebius
