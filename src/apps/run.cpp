// SPDX-License-Identifier: Apache-2.0
// Only the continuation goes to stdout. Ctrl-C stops the answer; in a conversation the program goes
// on, a second Ctrl-C at the prompt ends it.
#include "apps/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <iterator>
#include <memory>

#include "apps/commands.h"
#include "apps/explain.h"
#include "apps/manners.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "model/engine.h"
#include "runtime/memory.h"
#include "runtime/roofs.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/stop.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{1} << 30;
std::atomic<bool> interrupted{false};
void on_interrupt(int) { interrupted = true; }

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  size_t prompt_tokens = 0;
  size_t decode_steps = 0;  // after the step that brought the first token
  double prompt_seconds = 0, decode_seconds = 0;
  std::string finish = "length";
};

// A conversation as one answer, for the final line.
void add(Answer& total, const Answer& a) {
  total.tokens.insert(total.tokens.end(), a.tokens.begin(), a.tokens.end());
  total.prompt_tokens += a.prompt_tokens;
  total.decode_steps += a.decode_steps;
  total.prompt_seconds += a.prompt_seconds;
  total.decode_seconds += a.decode_seconds;
  total.finish = a.finish;
}

struct Statistics {
  double prompt_rate = 0, decode_rate = 0;  // tokens per second
  double gbs = 0,
         roof_gbs = 0;  // weights read while decoding; what the same threads can read from memory
  uint64_t peak_memory = 0;
  double percent_of_roof() const { return roof_gbs > 0 ? 100 * gbs / roof_gbs : 0; }
};

class Session {
 public:
  explicit Session(const RunCommandOptions& options)
      : options_(options),
        tokenizer_(Tokenizer::from_folder(options.model.folder)),
        open_(options.model, options.context),
        defaults_(read_generation_defaults(
            options.model.folder, [&](std::string_view t) { return tokenizer_.token_to_id(t); },
            open_.model->vocab())),
        engine_(*open_.model, {options.context, 512},
                static_cast<size_t>(std::max<int64_t>(0, open_.checkpoint.config().max_positions)),
                tokenizer_.vocab_size()) {
    tokenizer_.check_fits(open_.model->vocab());
  }

  Answer answer(const std::vector<int32_t>& prompt, bool show) {
    Request request;
    request.prompt = prompt;
    request.sampling = sampling();
    request.max_new = options_.max_new < 0 ? SIZE_MAX : static_cast<size_t>(options_.max_new);
    request.stop_tokens = defaults_.eos;
    request.ignore_stop = options_.ignore_eos;
    Answer a;
    a.prompt_tokens = prompt.size();
    std::vector<std::string> stops = options_.stop;
    stops.insert(stops.end(), defaults_.stop_strings.begin(), defaults_.stop_strings.end());
    StopMatcher stop(std::move(stops));
    Tokenizer::Stream stream(tokenizer_, true);
    const auto give = [&](const std::string& text) {
      a.text += text;
      if (!show || text.empty()) return;
      std::cout << text << std::flush;
    };
    const uint64_t id = engine_.add(std::move(request));
    auto start = Clock::now();
    bool first = true, running = true;
    while (running && !engine_.idle()) {
      if (interrupted) engine_.cancel(id);
      for (const StepResult& r : engine_.step()) {
        if (r.finish == Finish::kCancelled) {
          a.finish = "interrupted";
          running = false;
          break;
        }
        if (first)
          a.prompt_seconds = seconds_since(start), start = Clock::now(), first = false;
        else
          ++a.decode_steps;
        if (r.finish == Finish::kStopToken) {
          a.finish = "stop";
          running = false;
          break;
        }
        a.tokens.push_back(r.choice.token);
        give(stop.push(stream.push(r.choice.token)));
        if (stop.stopped()) {
          a.finish = "stop";
          engine_.cancel(id);
          running = false;
          break;
        }
        running = r.finish == Finish::kNo;
      }
    }
    while (!engine_.idle()) engine_.step();  // let a cancelled sequence go
    a.decode_seconds = seconds_since(start);
    give(stop.push(stream.finish()));
    give(stop.finish());
    return a;
  }

  // Taken once, when the answer is complete: the roof is measured after the peak of memory was
  // read, on the same threads.
  Statistics statistics(const Answer& a) {
    Statistics s;
    s.peak_memory = peak_resident_bytes();
    if (a.prompt_seconds > 0)
      s.prompt_rate = static_cast<double>(a.prompt_tokens) / a.prompt_seconds;
    if (a.decode_steps > 0 && a.decode_seconds > 0)
      s.decode_rate = static_cast<double>(a.decode_steps) / a.decode_seconds;
    s.gbs = s.decode_rate * static_cast<double>(open_.model->weight_bytes_per_token()) * 1e-9;
    try {
      RoofMemory memory(open_.pool, RoofMemory::Effort::kBrief);
      for (const size_t streams : {1u, 2u, 4u})
        s.roof_gbs = std::max(s.roof_gbs, memory.read(streams));
    } catch (
        const std::
            exception&) {  // no memory left to measure with: the answer stands, the figure is 0
      s.roof_gbs = 0;
    }
    return s;
  }

  void print_statistics(const Answer& a, const Statistics& s) const {
    if (manners().quiet) return;
    fmt::print(
        stderr,
        "\n[{} prompt tokens at {:.1f}/s, {} new at {:.1f}/s, {:.2f} GB/s of weights ({:.1f} % "
        "of the read roof of {:.1f} GB/s), peak memory {}, {}]\n",
        a.prompt_tokens, s.prompt_rate, a.tokens.size(), s.decode_rate, s.gbs, s.percent_of_roof(),
        s.roof_gbs, human_bytes(static_cast<double>(s.peak_memory)), a.finish);
  }

  Json to_json(const Answer& a, const Statistics& s) const {
    Json tokens = Json::array();
    for (const int32_t t : a.tokens) tokens.push(static_cast<int64_t>(t));
    return Json::object({{"text", a.text},
                         {"tokens", std::move(tokens)},
                         {"prompt_tokens", static_cast<uint64_t>(a.prompt_tokens)},
                         {"finish", a.finish},
                         {"prompt_seconds", a.prompt_seconds},
                         {"decode_seconds", a.decode_seconds},
                         {"load_seconds", open_.load_seconds},
                         {"prompt_tokens_per_s", s.prompt_rate},
                         {"decode_tokens_per_s", s.decode_rate},
                         {"gbs", s.gbs},
                         {"roof_gbs", s.roof_gbs},
                         {"percent_of_roof", s.percent_of_roof()},
                         {"peak_memory_bytes", s.peak_memory}});
  }

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  SamplingParams sampling() const {
    SamplingParams p;
    p.temperature =
        options_.temperature.value_or(static_cast<float>(defaults_.effective_temperature()));
    p.top_k = options_.top_k.value_or(static_cast<int>(defaults_.effective_top_k()));
    p.top_p = options_.top_p.value_or(static_cast<float>(defaults_.effective_top_p()));
    p.min_p = options_.min_p.value_or(static_cast<float>(defaults_.min_p.value_or(0)));
    p.repetition_penalty = options_.repetition_penalty.value_or(
        static_cast<float>(defaults_.repetition_penalty.value_or(1)));
    p.presence_penalty = options_.presence_penalty.value_or(0);
    p.frequency_penalty = options_.frequency_penalty.value_or(0);
    p.seed = options_.seed;
    return p;
  }

  RunCommandOptions options_;
  Tokenizer tokenizer_;
  OpenModel open_;
  GenerationDefaults defaults_;
  Engine engine_;
};

Json message(std::string_view role, std::string_view content) {
  return Json::object({{"role", role}, {"content", content}});
}

ChatTemplates chat_of(const std::string& folder) {
  ChatTemplates chat = ChatTemplates::from_folder(folder);
  if (chat.empty()) fail("{}: has no chat template; run it without --chat and -i", folder);
  return chat;
}

std::vector<TextSegment> render(const ChatTemplates& chat, const Json& messages) {
  ChatInput input;
  input.messages = &messages;
  return chat.render(input);
}

int converse(Session& session, const RunCommandOptions& options) {
  const ChatTemplates chat = chat_of(options.model.folder);
  Json messages = Json::array();
  if (!options.system.empty()) messages.push(message("system", options.system));
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) fmt::print(stderr, "Type a message; Ctrl-C stops an answer, Ctrl-D ends.\n");
  std::string line;
  Answer total;
  while (true) {
    if (terminal) fmt::print(stderr, "> ");
    interrupted = false;
    if (!std::getline(std::cin, line)) {
      if (total.prompt_tokens != 0) session.print_statistics(total, session.statistics(total));
      return interrupted ? 130 : 0;
    }
    if (line.empty()) continue;
    messages.push(message("user", line));
    try {
      const Answer a =
          session.answer(session.tokenizer().encode_segments(render(chat, messages), false), true);
      std::cout << '\n' << std::flush;
      messages.push(message("assistant", a.text));
      add(total, a);
    } catch (const Error& e) {  // the conversation outgrew the context, or the template refused it
      fmt::print(stderr, "moebius: {}\n", e.what());
      return 1;
    }
  }
}

}  // namespace

int run_run(const RunCommandOptions& options) {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a waiting read ends
  sigaction(SIGINT, &action, nullptr);
  std::string prompt = options.prompt;
  if (!options.interactive && !options.has_prompt) {
    if (!options.prompt_file.empty())
      prompt = read_text_file(options.prompt_file, kMaxPromptBytes);
    else
      prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  Session session(options);
  if (options.interactive) return converse(session, options);
  std::vector<int32_t> tokens;
  if (options.chat) {
    Json messages = Json::array();
    if (!options.system.empty()) messages.push(message("system", options.system));
    messages.push(message("user", prompt));
    tokens =
        session.tokenizer().encode_segments(render(chat_of(options.model.folder), messages), false);
  } else {
    tokens = session.tokenizer().encode(
        options.system.empty() ? prompt : options.system + "\n" + prompt, true);
  }
  const Answer a = session.answer(tokens, !options.json);
  if (!options.json && !a.text.empty() && a.text.back() != '\n') std::cout << '\n' << std::flush;
  const Statistics s = session.statistics(a);
  if (options.json) std::cout << session.to_json(a, s).dump() << '\n' << std::flush;
  session.print_statistics(a, s);
  return a.finish == "interrupted" ? 130 : 0;
}

Command run_command() {
  auto o = std::make_shared<RunCommandOptions>();
  Command c("run", "continues a text, or chats");
  c.folder(o->model.folder);
  c.section("Prompt");
  c.option("--prompt,-p", "TEXT", &o->prompt, "the text to continue").by_default("standard input");
  c.option("--file,-f", "FILE", &o->prompt_file, "read it from a file").file();
  c.at_most_one({"--prompt", "--file"});
  c.flag("--chat", o->chat, "the prompt is a user's message: use the folder's chat template");
  c.flag("--interactive,-i", o->interactive, "a conversation, line by line");
  c.option("--system", "TEXT", &o->system, "system message").by_default("none");
  c.section("Answer");
  c.option("--tokens-max,-n", "N", &o->max_new, "most new tokens; -1: until the end or the context")
      .range(-1, 1 << 30);
  c.option("--stop", "TEXT", &o->stop, "end before this text").by_default("none");
  c.flag("--ignore-eos", o->ignore_eos, "go on after end-of-text tokens");
  c.option("--ctx,-c", "N", &o->context, "most tokens of a sequence; 0: what the model allows")
      .range(0, 1 << 30);
  add_json_flag(c, o->json);
  c.section("Sampling");
  c.option("--temp,--temperature", "X", &o->temperature, "temperature; 0: greedy")
      .by_default("generation_config.json");
  c.option("--top-k", "N", &o->top_k, "keep the N best tokens; 0: all")
      .by_default("generation_config.json");
  c.option("--top-p", "X", &o->top_p, "keep the best tokens that reach this probability")
      .by_default("generation_config.json");
  c.option("--min-p", "X", &o->min_p, "drop tokens below this share of the best one's probability")
      .by_default("generation_config.json, else 0");
  c.option("--repetition-penalty", "X", &o->repetition_penalty,
           "divide the logits of tokens already there")
      .by_default("generation_config.json, else 1");
  c.option("--presence-penalty", "X", &o->presence_penalty, "subtract from tokens of the answer")
      .by_default("0");
  c.option("--frequency-penalty", "X", &o->frequency_penalty,
           "subtract per occurrence in the answer")
      .by_default("0");
  c.option("--seed", "N", &o->seed, "of the draws");
  add_model_options(c, o->model);
  c.examples = {"moebius run -p 'It was a dark night' -n 64 --temp 0.8 --seed 1",
                "moebius run DIR --chat -p 'Who are you?'", "moebius run DIR -i"};
  c.action = [o](const Command& command) {
    o->has_prompt = command.given("--prompt");
    return run_run(*o);
  };
  return c;
}

}  // namespace moebius
