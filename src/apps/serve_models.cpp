// SPDX-License-Identifier: Apache-2.0
#include "apps/serve_models.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

#include "apps/cli/commit.h"
#include "apps/cli/folder.h"
#include "apps/cli/manners.h"
#include "apps/rank_process.h"
#include "base/error.h"
#include "base/file.h"
#include "gguf/model_files.h"
#include "model/run/pooling.h"
#include "runtime/memory.h"
#include "runtime/roofs.h"
#include "serve/engine_generator.h"
#include "serve/pooled.h"
#include "serve/pooling_generator.h"
#include "serve/waking_generator.h"

namespace moebius {
namespace {

// Checks that the folder has a tokenizer, because requests and answers are text.
void check_tokenizer(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tiktoken.model"})
    if (has_model_text(folder, name)) return;
  fail(
      "{}: serve needs a tokenizer, and the folder has no tokenizer.json or tiktoken.model; copy "
      "it from the original model",
      printable(folder));
}

struct NamedFolder {
  std::string name, folder;
  std::vector<std::string> aliases;
};

// Parses --model NAME=DIR and --alias ALIAS=NAME; an alias without a name belongs to the first
// model.
std::vector<NamedFolder> named_folders(const ModelServing& s) {
  if (s.named.empty()) return {{model_name(s.model.folder), s.model.folder, s.aliases}};
  std::vector<NamedFolder> out;
  std::vector<std::string> names;
  const auto take = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) != names.end())
      throw UsageError(fmt::format("two models are called '{}'", printable(name)));
    names.push_back(name);
  };
  for (const std::string& text : s.named) {
    const size_t at = text.find('=');
    if (at == std::string::npos || at == 0 || at + 1 == text.size())
      throw UsageError(fmt::format("--model is '{}'; expected NAME=DIR, as in small=models/small",
                                   printable(text)));
    out.push_back({text.substr(0, at), usable_folder(text.substr(at + 1)), {}});
    take(out.back().name);
  }
  for (const std::string& text : s.aliases) {
    const size_t at = text.rfind('=');
    auto owner = out.begin();
    if (at != std::string::npos)
      owner = std::find_if(out.begin(), out.end(),
                           [&](const NamedFolder& m) { return m.name == text.substr(at + 1); });
    if (owner == out.end())
      throw UsageError(fmt::format("--alias {}: no model is called '{}'; expected ALIAS=NAME",
                                   printable(text), printable(text.substr(at + 1))));
    owner->aliases.push_back(text.substr(0, at));
    take(owner->aliases.back());
  }
  return out;
}

bool has_ranks(const ModelRunOptions& run) {
  const RankOptions& r = run.ranks;
  return r.ranks > 1 || r.pp > 1 || r.tp > 1 || r.ep > 1 || RankProcess::current() != nullptr;
}

}  // namespace

bool ModelServing::loads_again() const {
  return sleep_after > 0 || (!model.pack_dir.empty() && !has_ranks(model));
}

namespace {

void check_together(const ModelServing& s) {
  const std::string_view what = s.named.size() > 1 ? "several models" : "--sleep-after";
  if (s.named.size() < 2 && s.sleep_after == 0) return;
  if (has_ranks(s.model))
    fail("{}: not with ranks; serve each model in a process of its own", what);
  if (s.model.run.device != "cpu")
    fail("{}: not with --device {}; serve each model in a process of its own", what,
         s.model.run.device);
}

}  // namespace

std::vector<uint64_t> share_kv_budget(std::span<const uint64_t> wanted, uint64_t bytes,
                                      uint64_t free) {
  double sum = 0;
  for (const uint64_t w : wanted) sum += static_cast<double>(w);
  double budget = static_cast<double>(bytes);
  if (bytes == 0) budget = free > 0 ? std::min(sum, static_cast<double>(free) / 2) : sum;
  std::vector<uint64_t> out;
  for (const uint64_t w : wanted)
    out.push_back(static_cast<uint64_t>(std::floor(budget * (static_cast<double>(w) / sum))));
  return out;
}

// Holds a model that returns rows instead of logits.
struct RowsModel {
  RowsModel(const Checkpoint& checkpoint, const ModelRunOptions& run)
      : runtime(Runtime::shared(thread_count(run.run))) {
    ModelOptions options = model_options_of(run, checkpoint);
    options.pool = &runtime->pool();
    model = load_rows_model(checkpoint, options);
  }
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<DecoderModel> model;
};

// Holds everything that is freed when a model sleeps.
struct HostedModel::Weights {
  Weights(const ModelRunOptions& run, size_t context, const std::function<void(double)>& loaded)
      : checkpoint(open_to_run(run.folder)) {
    open.emplace(checkpoint, model_options_of(run, checkpoint, context), run.ranks,
                 thread_count(run.run), loaded);
  }
  explicit Weights(const ModelRunOptions& run) : checkpoint(open_checkpoint(run.folder)) {
    rows.emplace(checkpoint, run);
  }
  DecoderModel& model() const { return open ? *open->model : *rows->model; }
  size_t context(size_t asked) const {  // 0: the length for which the model was trained
    const int64_t trained = checkpoint.config().max_positions;
    return asked != 0 ? asked : trained > 0 ? static_cast<size_t>(trained) : 4096;
  }
  const Checkpoint checkpoint;
  std::optional<OpenModel> open;  // set for a model of rows; else the next one is
  std::optional<RowsModel> rows;
  std::optional<TextEngine> engine;  // set for a model that returns text
};

HostedModel::HostedModel(const ModelServing& serving, std::string name, std::string folder,
                         std::vector<std::string> aliases, KvDisk* disk,
                         std::shared_ptr<StepTurns> turns,
                         std::function<void(const std::string& words)> say)
    : serving_(serving),
      run_(serving.model),
      engine_(serving.engine),
      aliases_(std::move(aliases)),
      disk_(disk),
      turns_(std::move(turns)),
      say_(std::move(say)) {
  check_model_files(folder);
  check_tokenizer(folder);
  run_.folder = std::move(folder);
  if (const auto plan = read_pooling(open_checkpoint(run_.folder))) {
    served_.pooling = std::make_shared<PoolingPlan>(*plan);
    run_.pack_dir.clear();  // files of packed weights hold whole models
    run_.predictor = false;
    if (run_.run.device != "cpu" || has_ranks(run_))
      fail("{}: vectors and scores come from one process, on the CPU", printable(run_.folder));
  }
  served_.name = std::move(name);
  if (run_.predictor && turns_ != nullptr && !open_checkpoint(run_.folder).has_predictor()) {
    note("{}: has no layer for multi-token prediction; --speculate lookup", served_.name);
    engine_.speculate = "lookup";
    run_.predictor = false;
  }
}

HostedModel::~HostedModel() = default;

bool HostedModel::gives_rows() const {
  return served_.pooling != nullptr && !served_.pooling->needs_logits();
}

std::shared_ptr<HostedModel::Weights> HostedModel::open_weights(
    const std::function<void(double share)>& loaded) const {
  if (gives_rows()) return std::make_shared<Weights>(run_);
  return std::make_shared<Weights>(run_, serving_.context, loaded);
}

void HostedModel::open(const std::function<void(double share)>& loaded) {
  tokenizer_ = Tokenizer::from_folder(run_.folder);
  templates_ = ChatTemplates::from_folder(run_.folder, run_.chat_template);
  if (served_.pooling != nullptr) check_pairs(*tokenizer_, *templates_, *served_.pooling);
  opened_ = open_weights(loaded);
}

uint64_t HostedModel::kv_wanted() const { return kv_wanted(*opened_); }

uint64_t HostedModel::kv_wanted(const Weights& w) const {
  return kv_bytes_wanted(w.model(), serving_.parallel, w.context(serving_.context));
}

void HostedModel::start_engine(Weights& w) {
  if (served_.pooling != nullptr) return;
  EngineOptions e = engine_options(engine_, *w.open, serving_.context);
  e.parallel = serving_.parallel;
  e.stretch = serving_.stretch;
  if (kv_bytes_ != 0) e.kv_bytes = kv_bytes_;
  e.cost = cost_;
  use_kv_dir(disk_, run_, *w.open, e);
  w.engine.emplace(w.model(), &*tokenizer_, e);
  w.engine->engine().commit_memory();
  if (!w.engine->engine().cost().known()) w.engine->engine().calibrate();
  w.engine->masks();  // computed here, because it takes a while and no request should wait
}

std::unique_ptr<Generator> HostedModel::pooling_generator(const std::shared_ptr<Weights>& w) {
  PoolingGeneratorOptions p;
  p.slots = serving_.parallel;
  p.kv_bytes = kv_bytes_;
  const int64_t hidden = w->checkpoint.config().hidden;
  p.row = gives_rows() ? static_cast<size_t>(hidden) : w->model().vocab();
  p.turns = turns_;
  p.weights = w;
  return std::make_unique<PoolingGenerator>(w->model(), *served_.pooling, std::move(p));
}

std::unique_ptr<Generator> HostedModel::generator_of(const std::shared_ptr<Weights>& w) {
  weights_ = w;
  if (served_.pooling != nullptr) return pooling_generator(w);
  EngineGeneratorOptions g;
  g.slots = serving_.parallel;
  g.experts = static_cast<size_t>(std::max<int64_t>(0, w->checkpoint.config().experts));
  g.read_roof = read_roof_;
  g.disk = w->engine->engine().kv().archive() != nullptr;
  g.turns = turns_;
  g.weights = w;
  if (w->open->split.ranks() > 1)
    g.ranks = [&model = w->model()] { return model.rank_figures(false); };
  return std::make_unique<EngineGenerator>(*w->engine, std::move(g));
}

void HostedModel::start(uint64_t kv_bytes) {
  const std::shared_ptr<Weights> w = std::move(opened_);
  kv_bytes_ = kv_bytes;
  start_engine(*w);
  if (w->engine) {
    say_budget(w->engine->engine(), w->checkpoint, serving_.context);
    read_roof_ = 1e9 * brief_read_roof(w->open->pool);
    kv_bytes_ = w->engine->engine().kv_bytes();
  } else if (kv_bytes_ == 0) {
    const uint64_t wanted[] = {kv_wanted(*w)};
    kv_bytes_ = share_kv_budget(wanted, static_cast<uint64_t>(engine_.kv_gib * 0x1p30),
                                available_memory_bytes())[0];
  }
  weights_ = w;
  describe();
  generator_ = generator_of(w);
  if (!serving_.loads_again()) return;
  WakingOptions o;
  o.sleep_after = std::chrono::milliseconds(std::llround(1000 * serving_.sleep_after));
  o.load = [this] { return load(); };
  o.unload = [this](std::unique_ptr<Generator> g) { unload(std::move(g)); };
  o.say = [this](const std::string& words) { say_(served_.name + ": " + words); };
  generator_ = std::make_unique<WakingGenerator>(std::move(generator_), std::move(o));
}

// Fills in what requests are checked against.
void HostedModel::describe() {
  const std::shared_ptr<Weights> w = weights_.lock();
  served_.aliases = aliases_;
  served_.any_model = serving_.any_model;
  served_.priorities = serving_.priorities;
  served_.tokenizer = &*tokenizer_;
  served_.templates = &*templates_;
  served_.defaults = read_generation_defaults(
      run_.folder, [&](std::string_view t) { return tokenizer_->token_to_id(t); },
      w->model().vocab());
  served_.markup =
      choose_answer_markup(*templates_, *tokenizer_, serving_.tool_format, serving_.reasoning);
  const std::string& field = serving_.reasoning_field;
  if (!field.empty())
    served_.reasoning_field = field == "reasoning" ? ReasoningField::kReasoning
                              : field == "both"    ? ReasoningField::kBoth
                                                   : ReasoningField::kReasoningContent;
  if (const PoolingPlan* plan = served_.pooling.get(); plan != nullptr) {
    served_.vector_size = plan->scores ? 1 : static_cast<size_t>(w->checkpoint.config().hidden);
    served_.context = std::min(plan->most_tokens, w->context(serving_.context));
  } else {
    served_.context = w->engine->engine().longest();
  }
  served_.vocab = std::min(tokenizer_->vocab_size(), w->model().vocab());
  if (serving_.max_output != 0) served_.max_output = serving_.max_output;
  served_.slots = serving_.parallel;
  served_.created = std::time(nullptr);
  served_.version = MOEBIUS_VERSION;
  served_.commit = kBuildCommit;
  served_.kernel = run_.run.kernel.empty() ? "chosen" : run_.run.kernel;
}

std::unique_ptr<Generator> HostedModel::load() {
  const std::shared_ptr<Weights> w = open_weights({});
  start_engine(*w);
  return generator_of(w);
}

void HostedModel::unload(std::unique_ptr<Generator> generator) {
  const auto forever = std::chrono::hours(24);
  generator->stop(forever);
  keep_prompts();
  if (const std::shared_ptr<Weights> w = weights_.lock(); w != nullptr && w->engine)
    cost_ = w->engine->engine().cost();
  generator.reset();
  malloc_trim(0);
}

void HostedModel::keep_prompts() {
  if (const std::shared_ptr<Weights> w = weights_.lock(); w != nullptr && w->engine)
    keep_kv_dir(disk_, w->engine->engine());
}

HostedModels::HostedModels(const ModelServing& serving, KvDisk* disk,
                           std::function<void(const std::string& words)> say)
    : serving_(serving) {
  check_together(serving);
  if (serving.named.size() > 1 && !serving.model.chat_template.empty())
    throw UsageError("--chat-template is for one model; several were named");
  std::vector<NamedFolder> folders = named_folders(serving);
  const auto turns = folders.size() > 1 ? std::make_shared<StepTurns>() : nullptr;
  for (NamedFolder& f : folders)
    models_.push_back(std::make_unique<HostedModel>(serving, std::move(f.name), std::move(f.folder),
                                                    std::move(f.aliases), disk, turns, say));
}

void HostedModels::load(const std::function<void(double share)>& loaded) {
  if (models_.size() > 1 || serving_.loads_again())
    runtime_ = Runtime::shared(thread_count(serving_.model.run));
  const auto count = static_cast<double>(models_.size());
  for (size_t i = 0; i < models_.size(); ++i)
    models_[i]->open([&](double share) { loaded((static_cast<double>(i) + share) / count); });
  if (models_.size() == 1) return models_.front()->start(0);
  std::vector<uint64_t> wanted;
  for (const auto& m : models_) wanted.push_back(m->kv_wanted());
  const std::vector<uint64_t> shares = share_kv_budget(
      wanted, static_cast<uint64_t>(serving_.engine.kv_gib * 0x1p30), available_memory_bytes());
  for (size_t i = 0; i < models_.size(); ++i) models_[i]->start(shares[i]);
}

std::vector<ModelOffer> HostedModels::offers() {
  std::vector<ModelOffer> out;
  for (const auto& m : models_) out.push_back(m->offer());
  return out;
}

bool HostedModels::stop(std::chrono::milliseconds most) {
  return std::all_of(models_.begin(), models_.end(), [&](const auto& m) { return m->stop(most); });
}

void HostedModels::keep_prompts() {
  for (const auto& m : models_) m->keep_prompts();
}

}  // namespace moebius
