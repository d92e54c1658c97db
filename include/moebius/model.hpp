// SPDX-License-Identifier: Apache-2.0
// Whole models: load a folder, turn text into tokens and back, generate, score.
//
//   moebius::llm::Model model = moebius::llm::Model::load("path/to/checkpoint");
//   moebius::llm::Engine engine(model);
//   engine.add({model.tokenizer().encode("It was a dark", true), {}});
//   while (!engine.idle())
//     for (const moebius::llm::Event& e : engine.step()) std::cout << e.text << std::flush;
//
// Everything throws moebius::Error and nothing else of its own. Objects are movable handles that share what they stand for: an
// engine keeps its model. Part of the static library; the shared one shows moebius.h alone.
#pragma once
#include <optional>
#include <span>
#include <utility>

#include "moebius/moebius.hpp"

namespace moebius::llm {

// Messages of a chat, as JSON text. What is empty was not given.
struct Chat {
  std::string messages;   // array of objects with role, content, ...
  std::string tools;      // array
  std::string documents;  // array
  std::string extra;      // object: further names that the template knows (enable_thinking, ...)
  bool add_generation_prompt = true;
};

class Tokenizer {
 public:
  static Tokenizer open(const std::string& folder);
  // `add_special`: what the folder's post-processor adds (a BOS token, usually).
  std::vector<int32_t> encode(const std::string& text, bool add_special = true) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  size_t vocab() const;  // one past the highest id that has a token
  std::optional<std::string> token(int32_t id) const;
  std::optional<int32_t> id(const std::string& token) const;
  bool is_special(int32_t id) const;
  // What the folder's chat template makes of a chat: for people, and as a prompt. Text of a message never becomes a special
  // token of the prompt.
  bool has_template() const;
  std::string chat_text(const Chat& chat) const;
  std::vector<int32_t> chat_tokens(const Chat& chat) const;
  // The answer to a chat as its next message, in JSON: "content", "reasoning_content", and "tool_calls" where the chat has
  // tools; as the folder's template lets the model write them. `ended`: by itself, not by a length.
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

// Text of tokens as they come, in whole characters; together what decode() gives.
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
  int threads = 0;                   // 0: all cores, or those of `runtime`
  std::shared_ptr<Runtime> runtime;  // null: the one that layers of so many threads share
  std::string kernel;                // "": the best for this CPU
  Arithmetic arithmetic = Arithmetic::kDeclared;
  Int8Rows int8 = Int8Rows::kDeclared;
  std::string dtype = "auto";     // of activations: auto (as the folder declares), bf16, f16, f32
  std::string kv_dtype = "auto";  // of keys and values: auto, bf16, f16, f32, int8, fp8
  size_t context = 0;             // longest sequence that will be run; 0: what the config allows
  Progress progress;
  ActivationRows rows = ActivationRows::kDeclared;
  // Folder of packed weights: the first load writes them there, later ones map them; "": every load
  // packs into memory. What cannot be kept there is packed into memory too.
  std::string pack_dir;
  // Tokens that run ahead where that is faster; answers stay the same. lookup: those that followed the
  // same text before; mtp: those that the folder's layer for multi-token prediction expects; off.
  std::string speculate = "lookup";
  // cpu, or cuda or cuda:N: the model on a GPU. Then `experts` = cpu leaves experts on the CPU, auto those that do not
  // fit; gpu_memory: bytes that may be used there, 0: what is free less 1 GiB.
  std::string device = "cpu", experts;
  uint64_t gpu_memory = 0;
};

struct Perplexity {
  double loss = 0, error = 0;  // mean of -log p, and its standard error
  double perplexity = 0;
  size_t tokens = 0;  // that were predicted
};

class Model {
 public:
  static Model load(const std::string& folder, const LoadOptions& options = {});
  size_t vocab() const;    // width of a row of logits
  size_t context() const;  // tokens that the model was made for; 0: not said
  std::string info_json() const;
  bool has_tokenizer() const;
  Tokenizer tokenizer() const;  // throws where the folder has none, in words
  // Logits of every position, [tokens, vocab].
  void logits(std::span<const int32_t> tokens, std::span<float> to) const;
  // How well the tokens are predicted, in windows of `context` inputs.
  Perplexity perplexity(std::span<const int32_t> tokens, size_t context = 512) const;

 private:
  friend class Engine;
  struct Impl;
  explicit Model(std::shared_ptr<Impl> impl);
  Impl& held() const;
  std::shared_ptr<Impl> impl_;
};

// None: what the folder's generation_config.json says, else greedy.
struct Sampling {
  std::optional<float> temperature;  // 0: greedy
  std::optional<int> top_k;          // 0: all
  std::optional<float> top_p, min_p, repetition_penalty;
  std::optional<float> presence_penalty, frequency_penalty;
  uint64_t seed = 0;
  std::optional<int> logprobs;         // alternatives per token
  std::optional<uint64_t> max_tokens;  // none: the folder's max_new_tokens, else 256
  uint64_t min_tokens = 0;
  std::vector<std::string> stop;  // texts that end the answer, beside the folder's own
  std::vector<int32_t> stop_tokens;
  bool ignore_eos = false;    // go on after end-of-text tokens
  bool include_stop = false;  // the stop text is part of the answer
  bool skip_special = true;   // special tokens are no text
  size_t n = 1;               // answers
  // The form of the answer, one of them at most; empty: any text.
  std::string json_schema;  // as JSON; which keywords are kept is in docs/structured.md
  std::string regex;        // that all of the answer matches
  std::vector<std::string> choice;
  // An answer to a chat may call these: names are always those of the tools, arguments follow their schemas where a call is
  // asked for, or the tool says strict. Tokenizer::chat_answer reads the calls.
  std::string tools;                 // as Chat::tools; empty: none
  std::string tool_choice = "auto";  // or required, or the name of a tool
};

struct Request {
  std::vector<int32_t> prompt;
  Sampling sampling;
};

enum class Finish {
  kNone,
  kStop,     // a stop token or text
  kLength,   // max_tokens
  kContext,  // no room for another token
  kCancelled,
  kError,
};

// What a step brought for one answer: a token, text, the end.
struct Event {
  uint64_t id = 0;
  size_t choice = 0;   // of the request's n
  int32_t token = -1;  // -1: none. The token that ends an answer is stop_token instead
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // alternatives, best first
  std::string text;                            // that can no longer change, in whole characters
  Finish finish = Finish::kNone;
  int32_t stop_token = -1;
  std::string stop_text;
  std::string error;         // of kError
  size_t cached_tokens = 0;  // of the prompt
};

struct EngineOptions {
  size_t context = 0;     // most tokens of a sequence; 0: what the model allows
  size_t parallel = 1;    // sequences that run at once
  uint64_t kv_bytes = 0;  // for keys and values; 0: chosen
  double max_step = 1;    // longest step of a prompt, in seconds
};

// Any number of requests share every step. A model has one engine at a time.
class Engine {
 public:
  explicit Engine(const Model& model, const EngineOptions& options = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  uint64_t add(const Request& request);  // from any thread; throws when it can never run
  void cancel(uint64_t id);              // from any thread; its event comes with a later step
  bool idle() const;
  // One pass through the model; calls take turns. A pass that fails leaves every request as it was,
  // and the next one tries again; after some failures in a row every request ends with kError, its
  // event says what failed, and add() throws the same.
  std::vector<Event> step();
  size_t context() const;  // longest sequence that context and memory allow

 private:
  struct Impl;
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius::llm
