// SPDX-License-Identifier: Apache-2.0
// Implements run. Only the continuation goes to stdout. Ctrl-C ends loading, and stops the answer;
// a conversation goes on.
#include "apps/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/chat/conversation.h"
#include "apps/chat/text_session.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/manners.h"
#include "apps/commands.h"
#include "apps/rank_process.h"
#include "base/error.h"
#include "base/file.h"
#include "gguf/model_files.h"
#include "text/answer/answer_message.h"
#include "text/answer/call_grammar.h"
#include "text/grammar/answer_format.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxPromptBytes = uint64_t{1} << 30;

// Runs work, and reports an input that cannot be used as wrong usage of the option that named it.
template <class Work>
auto as_usage(Work&& work) {
  try {
    return work();
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
}

// Reads standard input without a line feed at its end, which belongs to typing or piping and not to
// the prompt.
std::string standard_input() {
  std::string text = read_input("-", kMaxPromptBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

bool has_template(const ModelRunOptions& model) {
  try {
    return !ChatTemplates::from_folder(model.folder, model.chat_template).empty();
  } catch (const Error&) {
    return false;
  }
}

// Returns nothing if the folder has no tokenizer and none is needed; `why` then holds the reason.
std::optional<Tokenizer> tokenizer_of(const std::string& folder, bool needed, std::string& why) {
  try {
    return Tokenizer::from_folder(folder);
  } catch (const Error& e) {
    if (needed) throw;
    why = e.what();
    return std::nullopt;
  }
}

// Holds the input of a run, read and checked before any weight is loaded.
class RunInput {
 public:
  explicit RunInput(const RunCommandOptions& given) : options(given) {
    as_usage([&] { check(sampling_params(options, {})); });
    if (options.logprobs && !options.json)
      throw UsageError("--logprobs is part of the JSON output; give --json too");
    read_format();
    read_tools();
    const bool named = options.prompt || options.prompt_file;
    const bool reads =
        !named && !options.interactive && !options.messages_file && options.tokens.empty();
    const bool typed = (reads || options.prompt_file == "-") && isatty(STDIN_FILENO) != 0;
    if (reads && typed && !options.json && !options.tools_file && has_template(options.model))
      options.interactive = true;
    else if (typed) {
      check_model_files(options.model.folder);
      note("type the prompt, then end it with Ctrl-D at the start of a line");
    }
    ids_ = parse_token_lists(options.tokens);
    if (named || (reads && !options.interactive)) text_ = read_text();
    if (text_ && !options.system.empty() && !options.uses_template() &&
        has_template(options.model)) {
      options.chat = true;
      note("--system: the folder has a chat template, so the prompt is answered as by --chat");
    }
    if (!options.uses_template()) return;
    // The folder without a tokenizer is the problem, not the option that needs text.
    if (!has_model_text(options.model.folder, "tokenizer.json"))
      check_model_files(options.model.folder);
    as_usage([&] { chat_.emplace(options.model.folder, options.model.chat_template); });
    if (options.messages_file) as_usage([&] { chat_->load(*options.messages_file); });
    if (!options.system.empty()) chat_->set_system(options.system);
    if (text_) chat_->say("user", *text_);
    if (options.tools_file) as_usage([&] { chat_->set_tools(options.tools, options.tool_format); });
  }

  bool ids() const { return !options.tokens.empty(); }
  Conversation& chat() { return *chat_; }
  std::vector<int32_t> prompt(const Tokenizer* tokenizer) const {
    if (ids()) return ids_;
    if (chat_) return chat_->prompt(*tokenizer);
    return tokenizer->encode(options.system.empty() ? *text_ : options.system + "\n" + *text_,
                             true);
  }

  RunCommandOptions options;

 private:
  void read_format() {
    if (!options.schema_file && !options.regex) return;
    if (options.ignore_eos)
      throw UsageError("--ignore-eos: an answer in a format ends where the format does");
    as_usage([&] {
      const std::string schema =
          options.schema_file ? read_input(*options.schema_file, kMaxPromptBytes) : "";
      if (options.schema_file && schema.empty())
        fail("{} is empty", printable(*options.schema_file));
      options.grammar = compile(format_of_texts(schema, options.regex.value_or(""), {}));
    });
  }
  void read_tools() {
    if (!options.tools_file) return;
    if (options.ignore_eos)
      throw UsageError("--ignore-eos: an answer with calls ends where they do");
    as_usage([&] {
      const std::string& file = *options.tools_file;
      options.tools = parse_json(read_input(file, kMaxPromptBytes), printable(file));
      const auto set = tool_set_of(options.tools);
      if (!set || set->tools().empty()) fail("{} has no tools", printable(file));
      call_demand(*set, options.tool_choice);
    });
  }
  std::string read_text() const {
    if (options.prompt) return *options.prompt;
    if (options.prompt_file && *options.prompt_file != "-")
      return read_input(*options.prompt_file, kMaxPromptBytes);
    return standard_input();
  }
  std::optional<std::string> text_;
  std::optional<Conversation> chat_;
  std::vector<int32_t> ids_;
};

// Prints one line for each call.
void print_calls(const Json& message) {
  const Json* calls = message.find("tool_calls");
  if (calls == nullptr) return;
  for (const Json& call : calls->items()) {
    const Json& function = *call.find("function");
    Json line = Json::object({{"id", *call.find("id")}, {"name", *function.find("name")}});
    const Json& arguments = *function.find("arguments");
    try {
      line.set("arguments", parse_json(arguments.as_string(), "arguments"));
    } catch (const Error&) {  // the arguments were cut off
      line.set("arguments", arguments);
    }
    std::cout << line.dump() << '\n' << std::flush;
  }
}

}  // namespace

int run_run(const RunCommandOptions& given) {
  RunInput input(given);
  const RunCommandOptions& options = input.options;
  check_kv_budget(options.engine);
  interrupt_ends(kInterruptedLoading);
  check_model_files(options.model.folder);
  std::string no_tokenizer;
  std::optional<Tokenizer> tokenizer =
      tokenizer_of(options.model.folder, !input.ids(), no_tokenizer);
  std::vector<int32_t> prompt;
  if (!options.interactive) prompt = input.prompt(tokenizer ? &*tokenizer : nullptr);
  TextSession session(options, std::move(tokenizer), [&](const ModelConfig& config) {
    if (!options.interactive)
      check_prompt(prompt, context_of(options.context, config), static_cast<size_t>(config.vocab));
  });
  if (!no_tokenizer.empty()) note("{}; the answer is printed as token ids", no_tokenizer);
  interrupt_is_noted();
  if (options.interactive) {
    const int status = converse(session, input.chat(), *make_line_reader());
    session.finish_trace();
    return status;
  }
  const Answer a = session.answer(std::move(prompt), [&](std::string_view part) {
    if (!options.json) std::cout << part << std::flush;
  });
  const bool shown = options.tools_file ? !a.text.empty() : !a.tokens.empty();
  const bool open_line = shown && !a.text.ends_with('\n');
  if (!options.json && open_line) std::cout << '\n' << std::flush;
  if (!options.json) print_calls(a.message);
  const Statistics s = session.statistics(a);
  if (options.json) std::cout << session.to_json(a, s).dump() << '\n' << std::flush;
  session.finish_trace();
  if (!a.error.empty()) fail("{}", a.error);
  if (!manners().quiet) put_on_stderr(fmt::format("\n{}\n", session.summary(a, s)));
  return a.finish == "interrupted" ? 130 : 0;
}

Command run_command() {
  auto o = std::make_shared<RunCommandOptions>();
  Command c("run", "continues a text, or chats");
  c.folder(o->model.folder);
  c.section("Prompt");
  c.option("--prompt,-p", "TEXT", &o->prompt, "the text to continue",
           {.default_text = "standard input; a chat at a terminal"});
  c.option("--file,-f", "FILE", &o->prompt_file, "read the prompt from a file; -: standard input",
           {.kind = ValueKind::kFile});
  c.option("--messages", "FILE", &o->messages_file,
           "chat messages, a JSON array; -: standard input", {.kind = ValueKind::kFile});
  c.option("--tokens", "LIST", &o->tokens, "token ids, separated by commas; needs no tokenizer",
           {.rare = true});
  c.at_most_one({"--prompt", "--file", "--messages", "--tokens"});
  c.flag("--chat", o->chat, "answer the prompt as a chat message, with the folder's chat template");
  add_chat_template_option(c, o->model.chat_template);
  c.at_most_one({"--chat-template", "--tokens"});
  c.flag("--interactive,-i", o->interactive, "chat; /help lists its commands");
  c.at_most_one({"--interactive", "--tokens"});
  c.option("--system", "TEXT", &o->system, "system message", {.default_text = "none"});
  c.section("Answer");
  c.option("--max-tokens,-n,--tokens-max", "N", &o->max_new, "most new tokens; -1: no limit",
           {.limits = {{-1, 1 << 30}}, .default_text = "256; no limit in a chat"});
  c.option("--stop", "TEXT", &o->stop, "stop before this text", {.default_text = "none"});
  c.option("--json-schema", "FILE", &o->schema_file,
           "answer with a JSON value of this schema; -: standard input",
           {.kind = ValueKind::kFile});
  c.option("--regex", "TEXT", &o->regex, "answer with a text that matches this expression",
           {.default_text = "none", .rare = true});
  c.at_most_one({"--json-schema", "--regex"});
  c.option("--tools", "FILE", &o->tools_file,
           "functions that a chat's answer may call, a JSON array; -: standard input",
           {.kind = ValueKind::kFile, .rare = true});
  c.at_most_one({"--tools", "--tokens"});
  c.at_most_one({"--tools", "--interactive"});
  c.at_most_one({"--tools", "--json-schema"});
  c.at_most_one({"--tools", "--regex"});
  c.option("--tool-choice", "WORD", &o->tool_choice,
           "with --tools: auto, required, or the name of the function to call", {.rare = true});
  c.option("--tool-format", "NAME", &o->tool_format,
           "with --tools: how the model writes calls; auto: as its chat template says",
           {.rare = true});
  c.flag("--ignore-eos", o->ignore_eos, "continue after end-of-text tokens", {.rare = true});
  c.option("--ctx,-c", "N", &o->context,
           "context length in tokens, prompt included; 0: the model's own",
           {.limits = {{0, 1 << 30}}});
  add_json_flag(c, o->json);
  c.at_most_one({"--interactive", "--json"});
  c.option("--logprobs", "N", &o->logprobs,
           "with --json: log-probabilities of the N likeliest tokens",
           {.limits = {{0, 1000}}, .default_text = "none", .rare = true});
  c.section("Sampling");
  c.option("--temp,--temperature", "X", &o->temperature, "temperature; 0: greedy",
           {.default_text = "generation_config.json"});
  c.option("--top-k", "N", &o->top_k, "sample from the N likeliest tokens; 0: all",
           {.default_text = "generation_config.json"});
  c.option("--top-p", "X", &o->top_p,
           "sample from the likeliest tokens that sum to this probability",
           {.default_text = "generation_config.json"});
  c.option("--min-p", "X", &o->min_p, "drop tokens less likely than this share of the likeliest",
           {.default_text = "generation_config.json, else 0", .rare = true});
  c.option("--top-n-sigma", "X", &o->top_n_sigma,
           "drop tokens whose logit is so many standard deviations below the greatest; 0: none",
           {.default_text = "0", .rare = true});
  c.option("--repetition-penalty", "X", &o->repetition_penalty,
           "penalty on tokens that occurred, prompt included",
           {.default_text = "generation_config.json, else 1", .rare = true});
  c.option("--presence-penalty", "X", &o->presence_penalty,
           "penalty on tokens that occurred in the answer", {.default_text = "0", .rare = true});
  c.option("--frequency-penalty", "X", &o->frequency_penalty,
           "penalty per occurrence in the answer", {.default_text = "0", .rare = true});
  c.option("--seed", "N", &o->seed, "seed of the sampling");
  c.section("Engine");
  add_engine_options(c, o->engine);
  add_kv_dir_options(c, o->kv_dir);
  c.option("--route-trace", "FILE", &o->route_trace,
           "write which experts each token chose in each layer, for `bench experts`",
           {.default_text = "none", .kind = ValueKind::kFile, .rare = true});
  add_model_options(c, o->model);
  c.examples = {"moebius run -p 'It was a dark night' -n 64 --temp 0.8 --seed 1",
                "moebius run DIR --chat -p 'Who are you?'", "moebius run DIR -i",
                "moebius run DIR --tools weather.json -p 'Do I need an umbrella in Oslo?'",
                "moebius run DIR --tokens 1,2,3 -n 8 --json --logprobs 5"};
  c.action = [o](const Command&) {
    const RankOptions& r = o->model.ranks;
    if (!o->route_trace.empty() &&
        (RankProcess::current() != nullptr || std::max({r.ranks, r.pp, r.tp, r.ep}) > 1))
      throw UsageError("--route-trace is for one process; ranks have some of the experts each");
    settle_speculation(o->engine, o->model);
    return run_run(*o);
  };
  return c;
}

}  // namespace moebius
