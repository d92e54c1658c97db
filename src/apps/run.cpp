// SPDX-License-Identifier: Apache-2.0
// Only the continuation goes to stdout. Ctrl-C ends loading, and stops the answer; in a conversation
// the program goes on.
#include "apps/run.h"

#include <fmt/core.h>

#include <iostream>
#include <iterator>
#include <memory>

#include "apps/commands.h"
#include "apps/conversation.h"
#include "apps/interrupt.h"
#include "apps/manners.h"
#include "apps/text_session.h"
#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{1} << 30;

// The prompt's text. Who types or pipes a line does not mean its end to be part of the prompt.
std::string prompt_text(const RunCommandOptions& options) {
  if (options.prompt) return *options.prompt;
  if (options.prompt_file) return read_text_file(*options.prompt_file, kMaxPromptBytes);
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

Conversation conversation_of(const RunCommandOptions& options) {
  Conversation chat(options.model.folder);
  if (options.messages_file) chat.load(*options.messages_file);
  if (!options.system.empty()) chat.set_system(options.system);
  return chat;
}

std::vector<int32_t> prompt_tokens(const RunCommandOptions& options, const std::string& text,
                                   const TextSession& session) {
  if (!options.tokens.empty()) return parse_token_lists(options.tokens);
  if (!options.chat && !options.messages_file)
    return session.tokenizer()->encode(options.system.empty() ? text : options.system + "\n" + text,
                                       true);
  Conversation chat = conversation_of(options);
  if (!options.messages_file) chat.say("user", text);
  return chat.prompt(*session.tokenizer());
}

}  // namespace

int run_run(const RunCommandOptions& options) {
  const bool given = options.prompt || options.prompt_file, ids = !options.tokens.empty();
  const bool reads_text = given || !(options.interactive || options.messages_file || ids);
  const std::string text = reads_text ? prompt_text(options) : std::string();
  interrupt_ends(kInterruptedLoading);
  TextSession session(options, !ids);
  interrupt_is_noted();
  if (options.interactive) {
    Conversation chat = conversation_of(options);
    if (given) chat.say("user", text);
    return converse(session, chat, *make_line_reader());
  }
  const Answer a =
      session.answer(prompt_tokens(options, text, session), [&](std::string_view part) {
        if (!options.json) std::cout << part << std::flush;
      });
  const bool open_line = !a.tokens.empty() && !a.text.ends_with('\n');
  if (!options.json && open_line) std::cout << '\n' << std::flush;
  const Statistics s = session.statistics(a);
  if (options.json) std::cout << session.to_json(a, s).dump() << '\n' << std::flush;
  if (!a.error.empty()) fail("{}", a.error);
  if (!manners().quiet) fmt::print(stderr, "\n{}\n", session.summary(a, s));
  return a.finish == "interrupted" ? 130 : 0;
}

Command run_command() {
  auto o = std::make_shared<RunCommandOptions>();
  Command c("run", "continues a text, or chats");
  c.folder(o->model.folder);
  c.section("Prompt");
  c.option("--prompt,-p", "TEXT", &o->prompt, "the text to continue").by_default("standard input");
  c.option("--file,-f", "FILE", &o->prompt_file, "read it from a file").file();
  c.option("--messages", "FILE", &o->messages_file, "chat messages, a JSON array").file();
  c.option("--tokens", "LIST", &o->tokens, "token ids by comma; needs no tokenizer").seldom();
  c.at_most_one({"--prompt", "--file", "--messages", "--tokens"});
  c.flag("--chat", o->chat, "the prompt is a user's message: use the folder's chat template");
  c.flag("--interactive,-i", o->interactive, "a conversation; /help lists its commands");
  c.at_most_one({"--interactive", "--tokens"});
  c.option("--system", "TEXT", &o->system, "system message").by_default("none");
  c.section("Answer");
  c.option("--tokens-max,-n", "N", &o->max_new, "most new tokens; -1: until the end or the context")
      .range(-1, 1 << 30);
  c.option("--stop", "TEXT", &o->stop, "end before this text").by_default("none");
  c.flag("--ignore-eos", o->ignore_eos, "go on after end-of-text tokens").seldom();
  c.option("--ctx,-c", "N", &o->context, "most tokens of a sequence; 0: what the model allows")
      .range(0, 1 << 30);
  add_json_flag(c, o->json);
  c.at_most_one({"--interactive", "--json"});
  c.option("--logprobs", "N", &o->logprobs, "with --json: the N likeliest tokens of every step")
      .range(0, 1000)
      .by_default("none")
      .seldom();
  c.section("Sampling");
  c.option("--temp,--temperature", "X", &o->temperature, "temperature; 0: greedy")
      .by_default("generation_config.json");
  c.option("--top-k", "N", &o->top_k, "keep the N best tokens; 0: all")
      .by_default("generation_config.json");
  c.option("--top-p", "X", &o->top_p, "keep the best tokens that reach this probability")
      .by_default("generation_config.json");
  c.option("--min-p", "X", &o->min_p, "drop tokens below this share of the best one's probability")
      .by_default("generation_config.json, else 0")
      .seldom();
  c.option("--repetition-penalty", "X", &o->repetition_penalty,
           "divide the logits of tokens already there")
      .by_default("generation_config.json, else 1")
      .seldom();
  c.option("--presence-penalty", "X", &o->presence_penalty, "subtract from tokens of the answer")
      .by_default("0")
      .seldom();
  c.option("--frequency-penalty", "X", &o->frequency_penalty,
           "subtract per occurrence in the answer")
      .by_default("0")
      .seldom();
  c.option("--seed", "N", &o->seed, "of the draws");
  c.section("Engine");
  add_engine_options(c, o->engine);
  add_model_options(c, o->model);
  c.examples = {"moebius run -p 'It was a dark night' -n 64 --temp 0.8 --seed 1",
                "moebius run DIR --chat -p 'Who are you?'", "moebius run DIR -i",
                "moebius run DIR --tokens 1,2,3 -n 8 --json --logprobs 5"};
  c.action = [o](const Command&) { return run_run(*o); };
  return c;
}

}  // namespace moebius
