// SPDX-License-Identifier: Apache-2.0
#include "apps/model_commands.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/cli/manners.h"
#include "apps/commands.h"
#include "apps/rank_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/summary.h"
#include "model/arch/arch.h"
#include "model/plan/forecast.h"
#include "model/run/scoring.h"
#include "runtime/comm_threads.h"
#include "runtime/memory.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxTokensFile = uint64_t{1} << 32;

std::vector<int32_t> parse_file(const std::string& path, const std::string& type) {
  const std::string bytes = read_input(path, kMaxTokensFile);
  const size_t width = type == "u32" ? 4 : 2;
  if (bytes.size() % width != 0)
    fail("{}: has {} bytes; expected a multiple of {} for {} tokens", path, bytes.size(), width,
         type);
  std::vector<int32_t> out(bytes.size() / width);
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t v = 0;
    std::memcpy(&v, bytes.data() + i * width, width);
    if (v > INT32_MAX) fail("{}: token {} is {}, which is no token id", path, i, v);
    out[i] = static_cast<int32_t>(v);
  }
  return out;
}

// Returns the fastest split that fits GPUs like this one, by an H200's constants, which do not
// change the order.
RankSplit split_of_gpus(size_t ranks, const Checkpoint& checkpoint, const ModelOptions& options) {
  Rates rates;
  rates.between = parse_link("10G,30us");
  const Gpu here = *this_machine(options.gpu).gpu;
  const std::vector<GpuWay> all = gpu_rank_ways(checkpoint, options, here.target, rates, ranks);
  if (all.empty()) fail("{} ranks with GPUs: the model has fewer layers and experts", ranks);
  // Ranks that are threads share one GPU.
  const size_t shared = RankProcess::current() == nullptr ? ranks : 1;
  const uint64_t most = here.usable / shared,
                 allowed = options.gpu.memory != 0 ? std::min(options.gpu.memory, most) : most;
  const auto fits =
      std::find_if(all.begin(), all.end(), [&](const GpuWay& way) { return way.bytes <= allowed; });
  // Loading then refuses it and names both numbers.
  return fits != all.end() ? fits->split : all[0].split;
}

// Returns false if packed experts are much larger than the checkpoint's, so that reading them takes
// longer than packing each of them anew.
bool packing_pays(const ModelPlan& plan) {
  uint64_t stored = 0;
  for (const PlannedModule& m : plan.ranks[0].modules)
    if (m.module->expert >= 0) stored += m.module->bytes;
  constexpr uint64_t kMostPercent = 105;
  return plan.ranks[0].sum(kDisk) / 100 <= stored / kMostPercent;
}

}  // namespace

Checkpoint open_to_run(const std::string& folder,
                       const std::function<void(const ModelConfig&)>& check) {
  Checkpoint checkpoint = open_checkpoint(folder);
  (void)decoder_spec(checkpoint.config());
  if (check) check(checkpoint.config());
  return checkpoint;
}

RankQuestion measured_question(size_t ranks, size_t threads, const Checkpoint& checkpoint,
                               ModelOptions options) {
  RankProcess* process = RankProcess::current();
  RankQuestion q;
  q.ranks = ranks;
  const size_t here = process != nullptr ? process->ranks_of_host() : ranks,
               own = process != nullptr ? threads : std::max<size_t>(1, threads / ranks);
  q.node.cores = static_cast<double>(own);
  // A shortage is reported later, when the memory of all ranks is known.
  q.node.memory = available_memory_bytes() / here;
  RankFacts facts;
  if (process != nullptr) {
    options.pool = &Runtime::shared(threads)->pool();
    facts = process->measure(checkpoint, options);
  } else {
    ThreadRanks world;
    world.ranks = static_cast<int>(ranks);
    run_thread_ranks(world, [&](Comm& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      const std::shared_ptr<Runtime> runtime = rank_runtime(rank, ranks, own);
      ModelOptions own_options = options;
      own_options.pool = &runtime->pool();
      const RankFacts f = measure_ranks(comm, &checkpoint, own_options);
      if (rank == 0) facts = f;
    });
  }
  q.node.costs = facts.costs;
  q.link = facts.link;
  return q;
}

RankSplit split_of(const RankOptions& o, size_t threads, const Checkpoint& checkpoint,
                   const ModelOptions& options) {
  const auto size = [](int n) { return static_cast<size_t>(n); };
  const RankSplit split{size(o.pp), size(o.tp), size(o.ep), o.attention == "repeat", size(o.spare)};
  check_split(split);
  const RankProcess* process = RankProcess::current();
  const size_t ranks = process != nullptr ? process->ranks() : size(o.ranks);
  if (o.ranks > 0 && size(o.ranks) != ranks)
    fail("--ranks {}, but {} were started", o.ranks, ranks);
  if (ranks == 0 || split.ranks() == ranks) return split;
  if (split.ranks() != 1)
    fail("{} {}, but {} are {} ranks", process != nullptr ? "ranks that were started:" : "--ranks",
         ranks, describe(split), split.ranks());
  if (!options.placement.gpu().empty()) {
    const RankSplit chosen = split_of_gpus(ranks, checkpoint, options);
    note("{} ranks: {}", ranks, describe(chosen));
    return chosen;
  }
  const RankForecast best =
      plan_ranks(checkpoint, measured_question(ranks, threads, checkpoint, options)).front();
  if (!best.refusal.empty()) fail("{} ranks: {}", ranks, best.reason);
  note("{} ranks: {}", ranks, describe(best.split));
  return best.split;
}

// Ranks that are threads of this process share its cores.
std::shared_ptr<Runtime> runtime_of(const RankSplit& split, size_t threads) {
  if (split.ranks() == 1 || RankProcess::current() != nullptr) return Runtime::shared(threads);
  return rank_runtime(0, split.ranks(), std::max<size_t>(1, threads / split.ranks()));
}

std::unique_ptr<DecoderModel> load_model(const Checkpoint& checkpoint, ModelOptions options,
                                         const RankSplit& split,
                                         std::unique_ptr<RankThreads>& followers) {
  options.split = split;
  if (RankProcess* process = RankProcess::current(); process != nullptr)
    return process->load(checkpoint, options);
  const Cluster cluster = this_process(options.gpu, split.ranks());
  ModelPlan plan = plan_model(checkpoint, options, cluster);
  if (plan.wish.expert_bytes != 0 && options.pack_dir.empty() && options.pack_where &&
      packing_pays(plan)) {
    options.pack_dir = options.pack_where(plan.ranks[0].sum(kDisk));
    if (!options.pack_dir.empty()) plan = plan_model(checkpoint, options, cluster);
  }
  for (const std::string& words : plan.words) note("{}", words);
  require_fit(plan, checkpoint.folder());
  if (split.ranks() == 1) return DecoderModel::load(checkpoint, plan, options);
  const RankSays say = [](const std::string& line) {
    if (!manners().quiet) put_on_stderr(fmt::format("{}\n", line));
  };
  followers = start_followers(checkpoint, plan, options, options.pool->size(), say);
  options.ranks = &followers->leader();
  return load_rank(checkpoint, plan, options, say);
}

std::vector<int32_t> parse_token_lists(std::span<const std::string> lists) {
  std::vector<int32_t> out;
  for (const std::string& list : lists) {
    const char *p = list.data(), *end = p + list.size();
    while (p < end) {
      if (*p == ',' || *p == ' ') {
        ++p;
        continue;
      }
      int32_t v = 0;
      const auto [next, error] = std::from_chars(p, end, v);
      if (error != std::errc() || v < 0 || (next < end && *next != ',' && *next != ' '))
        fail("--tokens: '{}' is not a list of token ids", printable(list));
      out.push_back(v);
      p = next;
    }
  }
  return out;
}

void take_rank_options(ModelOptions& o, const RankOptions& ranks) {
  o.loads_file = ranks.loads;
  o.warn = [](const std::string& line) { warning("{}", line); };
}

ModelOptions model_options_of(const ModelRunOptions& options, const Checkpoint& checkpoint,
                              size_t context) {
  ModelOptions o;
  o.context = context;
  take_devices(o, options.run);
  o.act = act_request_of(options.run);
  o.shortlist = shortlist_of(options.run);
  o.type = activation_type(options.dtype, checkpoint.config().dtype);
  o.kv_type = kv_type_from(options.kv_dtype);
  take_rank_options(o, options.ranks);
  o.pack_dir = options.pack_dir;
  take_expert_options(o, options.experts);
  o.note = [](const std::string& line) { note("{}", line); };
  o.tap = options.tap;
  o.predictor = options.predictor;
  return o;
}

OpenModel::OpenModel(const Checkpoint& opened, ModelOptions options, const RankOptions& ranks,
                     size_t threads, const std::function<void(double share)>& loaded)
    : checkpoint(opened),
      split{split_of(ranks, threads, checkpoint, options)},
      runtime(runtime_of(split, threads)) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& w : checkpoint.warnings()) warning("{}", w);
  note_request(checkpoint, options.act);
  note_kernel(checkpoint, options.policy, options.act, options.type);
  const uint64_t bytes = bytes_to_load(checkpoint, options.predictor);
  if (has_tower(checkpoint)) note("{}", kTextOnly);
  Progress progress("loading", bytes, /*bytes=*/true);
  std::atomic<uint64_t> done{0};
  options.pool = &pool;
  options.progress = [&](uint64_t n) {
    progress.advance(n);
    const auto sum = static_cast<double>(done += n);
    if (loaded) loaded(std::min(1.0, sum / static_cast<double>(std::max<uint64_t>(1, bytes))));
  };
  model = load_model(checkpoint, options, split, followers);
  load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::function<void(const ModelConfig&)> known_tokens(std::span<const int32_t> tokens) {
  return [tokens](const ModelConfig& config) {
    check_tokens(tokens, static_cast<size_t>(config.vocab));
  };
}

std::vector<int32_t> read_tokens(const TokenSource& source, const std::string& folder,
                                 bool add_special) {
  if (!source.list.empty()) return parse_token_lists(source.list);
  if (!source.file.empty()) return parse_file(source.file, source.type);
  check_model_files(folder);
  const std::string text =
      source.text_file.empty() ? source.text : read_input(source.text_file, kMaxTokensFile);
  return Tokenizer::from_folder(folder).encode(text, add_special);
}

int run_logits(const LogitsOptions& options) {
  (void)output_target(options.out);
  const std::vector<int32_t> tokens = read_tokens(options.tokens, options.model.folder, true);
  if (tokens.empty()) fail("no tokens were given; expected at least one");
  const Checkpoint checkpoint = open_to_run(options.model.folder, known_tokens(tokens));
  OpenModel open(checkpoint, model_options_of(options.model, checkpoint, tokens.size()),
                 options.model.ranks, thread_count(options.model.run));
  DecoderModel& model = *open.model;
  std::vector<float> all;
  Progress progress("logits", tokens.size(), /*bytes=*/false);
  each_logits(model, tokens, [&](std::span<const float> rows) {
    all.insert(all.end(), rows.begin(), rows.end());
    progress.advance(rows.size() / model.vocab());
  });
  const TensorData tensor{
      "logits",
      DType::kF32,
      {tokens.size(), model.vocab()},
      {reinterpret_cast<const uint8_t*>(all.data()), all.size() * sizeof(float)}};
  write_safetensors(options.out, {&tensor, 1});
  return 0;
}

void add_pack_option(Command& c, std::string& pack_dir) {
  c.option("--pack-dir", "DIR", &pack_dir,
           "folder of packed weights: the first start writes them there, later ones map them",
           {.default_text = "none: every start packs", .kind = ValueKind::kFile, .rare = true});
}

void add_chat_template_option(Command& c, std::string& file) {
  c.option("--chat-template", "FILE", &file, "chat template to use in place of the model's own",
           {.default_text = "the model's own", .kind = ValueKind::kFile, .rare = true});
}

void add_model_options(Command& c, ModelRunOptions& o) {
  add_run_options(c, o.run);
  add_place_options(c, o.run);
  add_dtype_option(c, o.dtype);
  add_kv_dtype_option(c, o.kv_dtype);
  add_pack_option(c, o.pack_dir);
  add_expert_options(c, o.experts);
  add_rank_options(c, o.ranks);
  c.follow = [&o] { return follow_rank_0(o); };
}

void add_tokens_file(Command& c, TokenSource& tokens) {
  c.option("--tokens-file", "FILE", &tokens.file, "binary file of little-endian token ids",
           {.kind = ValueKind::kFile});
}

void add_tokens_type(Command& c, TokenSource& tokens) {
  c.option("--tokens-type", "TYPE", &tokens.type, "integers of the tokens file",
           {.choices = {"u16", "u32"}});
}

Command logits_command() {
  auto o = std::make_shared<LogitsOptions>();
  Command c("logits", "writes the logits at every position of a token sequence");
  c.argument("DIR", o->model.folder, "checkpoint folder",
             {.kind = ValueKind::kFolder, .required = true});
  c.section("Input, one of");
  c.option("--tokens", "LIST", &o->tokens.list, "token ids, separated by commas");
  add_tokens_file(c, o->tokens);
  c.option("--prompt,-p,--text", "TEXT", &o->tokens.text, "text");
  c.exactly_one({"--tokens", "--tokens-file", "--prompt"});
  c.section("Options");
  add_tokens_type(c, o->tokens);
  c.option("--out", "FILE", &o->out, "safetensors file: logits f32 [T, vocabulary]",
           {.kind = ValueKind::kFile, .required = true});
  add_model_options(c, o->model);
  c.examples = {"moebius logits DIR --tokens 1,2,3 --out logits.safetensors --dtype f32"};
  c.action = [o](const Command&) { return run_logits(*o); };
  return c;
}

}  // namespace moebius
