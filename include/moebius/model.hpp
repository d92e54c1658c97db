// SPDX-License-Identifier: Apache-2.0
// Whole models: load a folder, turn text into tokens and back, generate, score.
//
//   moebius::llm::Model model = moebius::llm::Model::load("path/to/checkpoint");
//   moebius::llm::Engine engine(model);
//   engine.add({model.tokenizer().encode("It was a dark", true), {}});
//   while (!engine.idle())
//     for (const moebius::llm::Event& e : engine.step()) std::cout << e.text << std::flush;
//
// Every function may throw moebius::Error and throws nothing else of its own. Objects are movable
// handles to shared state: an engine keeps its model alive. These classes are in the static library
// only; the shared library exports moebius.h alone.
#pragma once
#include <optional>
#include <span>
#include <utility>

#include "moebius/moebius.hpp"

namespace moebius::llm {

// A chat as JSON texts, the input of the folder's chat template. An empty string means "not given".
struct Chat {
  std::string messages;   // array of objects with role, content, ...
  std::string tools;      // array of tool definitions as in OpenAI's API
  std::string documents;  // array of objects for templates that know documents
  std::string extra;      // object of further template variables (enable_thinking, ...)
  bool add_generation_prompt = true;
};

class Tokenizer {
 public:
  static Tokenizer open(const std::string& folder);
  // Returns the token ids of a text. `add_special` adds what the folder's post-processor adds,
  // usually a BOS token.
  std::vector<int32_t> encode(const std::string& text, bool add_special = true) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  size_t vocab() const;  // one past the highest id that has a token
  std::optional<std::string> token(int32_t id) const;
  std::optional<int32_t> id(const std::string& token) const;
  bool is_special(int32_t id) const;
  // Apply the folder's chat template to a chat: chat_text() returns text for people, chat_tokens()
  // the prompt. Text inside a message never becomes a special token of the prompt. Both throw Error
  // if the folder has no template (has_template()).
  bool has_template() const;
  std::string chat_text(const Chat& chat) const;
  std::vector<int32_t> chat_tokens(const Chat& chat) const;
  // Parses the tokens that a model answered to a chat and returns the next message as JSON:
  // "content", "reasoning_content", and "tool_calls" if the chat has tools, in the form that the
  // folder's template makes the model write. `ended`: true if the model ended the answer itself,
  // false if a length limit did.
  std::string chat_answer(const Chat& chat, std::span<const int32_t> tokens,
                          bool ended = true) const;

 private:
  friend class Stream;
  friend class Model;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  const Impl& held() const;
  std::shared_ptr<const Impl> impl_;
};

// Turns tokens into text as they arrive, in whole characters. All texts of push() and finish()
// together equal Tokenizer::decode(). One object serves one sequence and is not thread-safe.
class Stream {
 public:
  Stream(const Tokenizer& tokenizer, bool skip_special);
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  std::string push(int32_t id);
  std::string finish();

 private:
  struct Impl;
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

struct LoadOptions {
  int threads = 0;  // number of threads; 0: all cores, or as many as `runtime` has
  // Threads to compute with; null: a runtime shared by all layers and models with the same number
  // of threads.
  std::shared_ptr<Runtime> runtime;
  std::string kernel;  // kernel that all layers must use, by name; "": the best for this CPU
  Arithmetic arithmetic = Arithmetic::kDeclared;
  Int8Rows int8 = Int8Rows::kDeclared;
  // Number type of activations: auto (as the folder declares), bf16, f16, f32.
  std::string dtype = "auto";
  // Number type of cached keys and values: auto, bf16, f16, f32, int8, fp8.
  std::string kv_dtype = "auto";
  size_t context = 0;  // longest sequence in tokens that will be run; 0: what the config allows
  Progress progress;
  ActivationRows rows = ActivationRows::kDeclared;
  // Folder that caches packed weights: the first load writes them, later loads map them into
  // memory. "": no cache, every load packs. Weights that cannot be written there are packed in
  // memory.
  std::string pack_dir;
  // Speculative decoding, which changes the speed and not the answers. lookup: proposes tokens that
  // followed the same text earlier; mtp: proposes tokens of the folder's multi-token prediction
  // layer; off.
  std::string speculate = "lookup";
  // The device that runs the model: cpu, cuda or cuda:N. With a GPU, `experts` says which experts
  // stay on the CPU: cpu: all of them; auto: those for which GPU memory has no room; "": none.
  // `gpu_memory` limits the bytes of GPU memory; 0: all free bytes but 1 GiB.
  std::string device = "cpu", experts;
  uint64_t gpu_memory = 0;
};

struct Perplexity {
  // Mean of -log p over the tokens, and the standard error of that mean.
  double loss = 0, error = 0;
  double perplexity = 0;
  size_t tokens = 0;  // number of predicted tokens
};

class Model {
 public:
  static Model load(const std::string& folder, const LoadOptions& options = {});
  size_t vocab() const;  // number of logits per position
  // Longest sequence that the model was trained for, in tokens; 0: the config does not say.
  size_t context() const;
  std::string info_json() const;
  bool has_tokenizer() const;
  Tokenizer tokenizer() const;  // throws Error if the folder has no tokenizer
  // Computes the logits of every position into `to`, [tokens, vocab]. Throws Error if `to` has
  // another size.
  void logits(std::span<const int32_t> tokens, std::span<float> to) const;
  // Measures how well the model predicts the tokens, in windows of `context` tokens.
  Perplexity perplexity(std::span<const int32_t> tokens, size_t context = 512) const;

 private:
  friend class Engine;
  struct Impl;
  explicit Model(std::shared_ptr<Impl> impl);
  Impl& held() const;
  std::shared_ptr<Impl> impl_;
};

// Controls how tokens of an answer are drawn. A field without a value is taken from the folder's
// generation_config.json, and means greedy decoding if that has none.
struct Sampling {
  std::optional<float> temperature;  // softens or sharpens the distribution; 0: greedy
  std::optional<int> top_k;          // only the most likely top_k tokens may be drawn; 0: no limit
  std::optional<float> top_p, min_p, repetition_penalty;
  std::optional<float> presence_penalty, frequency_penalty;
  // Tokens whose logit is so many standard deviations of all logits below the greatest are dropped;
  // 0 or less: none.
  std::optional<float> top_n_sigma;
  uint64_t seed = 0;
  // Number of alternatives reported per token, Event::top; none: no probabilities.
  std::optional<int> logprobs;
  std::optional<uint64_t> max_tokens;  // none: the folder's max_new_tokens, else 256
  uint64_t min_tokens = 0;
  std::vector<std::string> stop;  // texts that end the answer, in addition to the folder's own
  std::vector<int32_t> stop_tokens;
  bool ignore_eos = false;    // true: an end-of-text token does not end the answer
  bool include_stop = false;  // true: the stop text is part of the answer
  bool skip_special = true;   // true: special tokens do not appear in the text
  size_t n = 1;               // number of independent answers
  // Three ways to constrain the form of the answer, of which at most one is given: a JSON schema
  // that the answer is valid for (docs/structured.md lists the keywords), a regular expression that
  // the whole answer matches, or a list of texts of which the answer is one. All empty: any text.
  std::string json_schema;
  std::string regex;
  std::vector<std::string> choice;
  // Tools that an answer to a chat may call. The names called are always names of these tools;
  // arguments are constrained to the tool's schema if a call is required or the tool is "strict".
  // Tokenizer::chat_answer parses the calls.
  std::string tools;                 // JSON as in Chat::tools; empty: none
  std::string tool_choice = "auto";  // auto, required, or the name of a tool
};

struct Request {
  std::vector<int32_t> prompt;
  Sampling sampling;
};

enum class Finish {
  kNone,
  kStop,     // the model produced a stop token or a stop text
  kLength,   // the answer has Sampling::max_tokens tokens
  kContext,  // the sequence is as long as context and memory allow
  kCancelled,
  kError,
};

// One result of a step for one answer: a token, new text, the end, or several of them.
struct Event {
  uint64_t id = 0;
  size_t choice = 0;  // which of the request's Sampling::n answers, from 0
  // The produced token; -1: none (the token that ended the answer is in stop_token).
  int32_t token = -1;
  float logprob = 0;
  // The most likely tokens with their log-probabilities, best first.
  std::vector<std::pair<int32_t, float>> top;
  std::string text;  // new text, in whole characters, that later tokens cannot change
  Finish finish = Finish::kNone;
  int32_t stop_token = -1;
  std::string stop_text;
  std::string error;  // why the answer failed, if finish is kError
  // Tokens of the prompt that were not computed again, because the prompt cache had them.
  size_t cached_tokens = 0;
};

struct EngineOptions {
  size_t context = 0;   // most tokens of a sequence; 0: what the model allows
  size_t parallel = 1;  // number of sequences that run at once
  // Memory for cached keys and values in bytes; 0: chosen from the free memory.
  uint64_t kv_bytes = 0;
  double max_step = 1;  // target for the time of one step that reads a prompt, in seconds
};

// Runs any number of requests together, one batch per step. A model has one engine at a time.
class Engine {
 public:
  explicit Engine(const Model& model, const EngineOptions& options = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  // Queues a request and returns its id. Thread-safe. Throws Error if the request can never run.
  uint64_t add(const Request& request);
  // Ends a request early: its last event comes with a later step and has Finish::kCancelled.
  // Thread-safe; an unknown id is ignored.
  void cancel(uint64_t id);
  bool idle() const;
  // Runs one batch through the model and returns its events. Calls from several threads take turns.
  // A step that fails leaves all requests as they were, and the next call tries again; after
  // several failures in a row every request ends with kError and the reason, and add() throws that
  // reason from then on.
  std::vector<Event> step();
  size_t context() const;  // longest sequence in tokens that context and memory allow

 private:
  struct Impl;
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius::llm
