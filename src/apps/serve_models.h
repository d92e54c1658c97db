// SPDX-License-Identifier: Apache-2.0
// Holds the models of a server: named on the command line, loaded at the start and, with
// --sleep-after, unloaded when unused and loaded again on request. The parts that check requests
// (names, tokenizer, templates) stay; weights, engine and keys come and go.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/engine_options.h"
#include "apps/kv_dir.h"
#include "apps/model_commands.h"
#include "serve/server.h"
#include "serve/step_turns.h"

namespace moebius {

// Holds how all models are served.
struct ModelServing {
  ModelRunOptions model;  // options of all models; its folder is used if there is one model
  EngineRunOptions engine;
  std::vector<std::string> named, aliases;  // entries NAME=DIR; empty: only the folder
  std::string tool_format = "auto", reasoning = "auto", reasoning_field;
  size_t context = 0, parallel = 32, max_output = 0;
  double stretch = 3, sleep_after = 0;  // sleep_after: seconds; 0: never
  bool any_model = false, priorities = false;

  // Returns whether weights may be loaded again: after sleep, or when the file of packed weights
  // was cut while in use.
  bool loads_again() const;
};

// Holds one model of the server.
class HostedModel {
 public:
  // say: receives a line for the log, from any thread. Arguments passed by reference or pointer
  // must outlive the object.
  HostedModel(const ModelServing& serving, std::string name, std::string folder,
              std::vector<std::string> aliases, KvDisk* disk, std::shared_ptr<StepTurns> turns,
              std::function<void(const std::string& words)> say);
  ~HostedModel();

  // Opens tokenizer, templates and weights. Throws Error.
  void open(const std::function<void(double share)>& loaded);
  // Returns the bytes that keys and values of --parallel sequences would take; call only while
  // open.
  uint64_t kv_wanted() const;
  // Starts the engine with so many bytes for keys and values (0: its own choice).
  void start(uint64_t kv_bytes);
  ModelOffer offer() { return {served_, generator_.get()}; }
  bool stop(std::chrono::milliseconds most) { return generator_->stop(most); }
  void keep_prompts();  // writes the prompt cache to disk; call after stop()

 private:
  struct Weights;
  std::unique_ptr<Generator> pooling_generator(const std::shared_ptr<Weights>& weights);
  std::shared_ptr<Weights> open_weights(const std::function<void(double share)>& loaded) const;
  uint64_t kv_wanted(const Weights& weights) const;
  bool gives_rows() const;
  void start_engine(Weights& weights);
  std::unique_ptr<Generator> generator_of(const std::shared_ptr<Weights>& weights);
  std::unique_ptr<Generator> load();
  void unload(std::unique_ptr<Generator> generator);
  void describe();

  const ModelServing& serving_;
  ModelRunOptions run_;
  EngineRunOptions engine_;
  const std::vector<std::string> aliases_;
  KvDisk* const disk_;
  const std::shared_ptr<StepTurns> turns_;
  const std::function<void(const std::string& words)> say_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplates> templates_;
  ServedModel served_;
  uint64_t kv_bytes_ = 0;
  double read_roof_ = 0;
  StepCost cost_;
  std::weak_ptr<Weights> weights_;   // weights in use
  std::shared_ptr<Weights> opened_;  // weights that open() loaded; null once the engine has started
  std::unique_ptr<Generator> generator_;
};

// Holds all models, in the order of the command line.
class HostedModels {
 public:
  // Throws UsageError or Error for names that do not fit, folders that cannot be served, and
  // options that exclude each other.
  HostedModels(const ModelServing& serving, KvDisk* disk,
               std::function<void(const std::string& words)> say);
  // Loads all models. Throws Error.
  void load(const std::function<void(double share)>& loaded);
  std::vector<ModelOffer> offers();
  bool stop(std::chrono::milliseconds most);
  void keep_prompts();

 private:
  const ModelServing& serving_;
  std::shared_ptr<Runtime> runtime_;  // threads, which stay when all models sleep
  std::vector<std::unique_ptr<HostedModel>> models_;
};

// Divides a budget for keys and values among models: each gets the same fraction of what it wants.
// The budget is `bytes`, or if 0 all that is wanted, but at most half of the `free` memory.
std::vector<uint64_t> share_kv_budget(std::span<const uint64_t> wanted, uint64_t bytes,
                                      uint64_t free);

}  // namespace moebius
