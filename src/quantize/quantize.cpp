// SPDX-License-Identifier: Apache-2.0
// Runs the units of a quantization on threads and writes the folder (quantize.h).
#include "quantize/quantize.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/folder_names.h"
#include "base/human.h"
#include "checkpoint/folder_write.h"
#include "checkpoint/shard_index.h"
#include "gguf/model_files.h"
#include "model/arch/arch.h"
#include "quantize/calibration.h"
#include "quantize/journal.h"
#include "quantize/module_encoder.h"
#include "quantize/schemes.h"
#include "quantize/shard_file.h"
#include "quantize/token_files.h"
#include "runtime/memory_limits.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kOtherMemory = uint64_t{64} << 20;  // bytes of the program, headers and lists
constexpr uint64_t kOtherDisk = uint64_t{1} << 20;     // bytes of configs, index and journal
constexpr uint64_t kMaxConfig = uint64_t{64} << 20;

bool is_empty_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) && fs::is_empty(path, error) && !error;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Returns the folder that contains a path.
std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

bool lies_in(const std::string& path, const std::string& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(path, error), outer = fs::canonical(folder, error);
  const auto [a, b] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return a == outer.end();
}

// Returns whether a file describes the model beside its weights and its config.
bool is_copied(const std::string& name) {
  constexpr std::string_view kLeft[] = {"config.json", "recipe.yaml", "quantize_config.json",
                                        "quantization_config.json", "hf_quant_config.json"};
  for (const std::string_view left : kLeft)
    if (name == left) return false;
  if (name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json") ||
      name == kJournalName)
    return false;
  for (const std::string_view end :
       {".json", ".jinja", ".txt", ".model", ".py", ".tiktoken", ".jsonl", ".md"})
    if (name.ends_with(end)) return true;
  for (const std::string_view begin : {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY", "README"})
    if (name.starts_with(begin)) return true;
  return false;
}

// Returns a copied file's name: the source's README describes the source, so it becomes
// "README.source.md".
std::string copied_name(const std::string& name) {
  constexpr std::string_view kReadme = "README";
  return name.starts_with(kReadme) ? "README.source" + name.substr(kReadme.size()) : name;
}

}  // namespace

struct QuantizeJob::State {
  Journal journal;
  std::set<std::string, std::less<>> wanted;  // modules that need calibration
  TokenWindows windows;
  CalibrationCost cost;
  std::unique_ptr<Calibration> calibration;
  std::mutex mutex;  // guards the reports
  std::vector<ModuleReport> reports;
  std::atomic<uint64_t> done{0};
};

QuantizeJob::QuantizeJob(QuantizeOptions options, size_t threads)
    : options_(std::move(options)),
      source_(Checkpoint::open(options_.source, options_.links)),
      state_(std::make_shared<State>()) {
  options_.target = without_slash(options_.target);
  partial_ = options_.target + ".partial";
  check_target();
  find_others();
  selection_ = select_modules(source_, options_);
  check_method();
  UnitWork work;
  work.type = options_.dtype;
  work.gptq = options_.method == QuantizeMethod::kGptq;
  work.searched = options_.method != QuantizeMethod::kRtn;
  work.calibrated = !options_.calibration.files.empty();
  plan_ = plan_output(source_, selection_, options_.shard_bytes, work);
  plan_calibration();
  forecast_.threads = std::max<size_t>(1, threads);
  check_room();
}

void QuantizeJob::check_target() const {
  const std::string& target = options_.target;
  if (gguf_file_of(options_.source))
    fail("{}: is a GGUF file, quantized once already; expected a folder of safetensors",
         options_.source);
  if (target.empty()) fail("no folder to write to was given");
  if (lies_in(target, options_.source))
    fail("{}: lies in {}, which is only read; expected another folder", target, options_.source);
  std::error_code error;
  if (!fs::is_directory(parent_of(target), error))
    fail("{}: there is no such folder; expected one in which {} can be made", parent_of(target),
         base_name(target));
  if (path_exists(target) && !fs::is_directory(target, error))
    fail("{}: exists and is no folder; expected a folder that does not exist", target);
  if (path_exists(target) && !is_empty_folder(target)) {
    const bool ours = path_exists(join_path(target, kJournalName));
    if (!options_.overwrite || !ours)
      fail("{}: exists and is not empty{}", target,
           ours ? "; --overwrite replaces it" : "; expected a folder that does not exist");
  }
  const bool begun = path_exists(partial_) && !is_empty_folder(partial_);
  if (begun && !path_exists(join_path(partial_, kJournalName)))
    fail("{}: exists and is not an unfinished run of this program; expected it to be removed",
         partial_);
  if (begun && !options_.resume && !options_.overwrite)
    fail("{}: is an unfinished run; --resume goes on with it, --overwrite begins anew", partial_);
  if (options_.resume && !begun)
    fail("{}: no such unfinished run; without --resume a new one begins", partial_);
}

void QuantizeJob::check_room() {
  QuantizeForecast& f = forecast_;
  f.bytes_in = plan_.source_bytes;
  f.bytes_out = plan_.output_bytes;
  f.bits_per_weight = static_cast<double>(plan_.chosen_bytes) * 8 /
                      static_cast<double>(std::max<uint64_t>(1, plan_.chosen_weights));
  f.memory_free = UINT64_MAX;
  for (const MemoryLimit& l : memory_limits()) f.memory_free = std::min(f.memory_free, l.free);
  const uint64_t budget = options_.memory != 0 ? options_.memory : f.memory_free / 10 * 8;
  const CalibrationCost& cost = state_->cost;
  const uint64_t one = plan_.unit_memory, other = kOtherMemory + cost.moments;
  const uint64_t least = std::max(one + other, cost.stage + kOtherMemory);
  if (budget < least)
    fail("{} needs {} of memory, and {} may be used",
         one + other >= cost.stage + kOtherMemory ? "the largest matrix" : "the largest layer",
         human_bytes(least), human_bytes(budget));
  // Rows stay in memory if they take at most a third of what is left; else they go to files.
  f.scratch = cost.rows > 0 && (!options_.scratch.empty() || cost.rows > (budget - least) / 3)
                  ? cost.rows
                  : 0;
  const uint64_t kept = f.scratch > 0 ? 0 : cost.rows;
  f.threads = std::min<uint64_t>(f.threads, (budget - other - kept) / std::max<uint64_t>(1, one));
  f.memory = std::max(one * f.threads + other, cost.stage + kOtherMemory) + kept;
  uint64_t there = 0;  // bytes of finished shards of the resumed run
  std::error_code error;
  if (options_.resume)
    for (const OutputPlan::Shard& s : plan_.shards)
      if (const auto n = fs::file_size(join_path(partial_, s.name), error); !error) there += n;
  f.disk_needed = kOtherDisk;
  for (const OutputPlan::Shard& s : plan_.shards) f.disk_needed += s.bytes;
  f.disk_needed -= std::min(f.disk_needed, there);
  const std::string beside = path_exists(partial_) ? partial_ : parent_of(options_.target);
  f.disk_free = free_bytes(beside);
  if (options_.scratch.empty()) f.disk_needed += f.scratch;
  if (const uint64_t room = options_.scratch.empty() ? f.scratch : free_bytes(options_.scratch);
      f.scratch > room)
    fail("{}: rows of the calibration need {}, and the disk has {} free", options_.scratch,
         human_bytes(f.scratch), human_bytes(room));
  if (f.disk_needed > f.disk_free)
    fail("{}: needs {}, and the disk has {} free", options_.target, human_bytes(f.disk_needed),
         human_bytes(f.disk_free));
}

void QuantizeJob::probe() {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  // Measures the first unit that encodes, repeatedly, with one thread.
  const WorkUnit* unit = nullptr;
  for (const OutputPlan::Shard& s : plan_.shards)
    for (const WorkUnit& u : s.units)
      if (u.kind == WorkUnit::Kind::kEncode && unit == nullptr) unit = &u;
  if (unit == nullptr) return;
  // Only rounding is forecast: methods that read a text take longer.
  if (options_.method != QuantizeMethod::kRtn || !options_.calibration.files.empty()) return;
  LoadBuffer buffer;
  double bytes = 0;
  const Clock::time_point start = Clock::now();
  do {
    buffer.reset();
    do_unit(*unit, source_.store(), options_, nullptr, buffer);
    bytes += static_cast<double>(unit->source_bytes);
  } while (since(start) < 0.02);
  const double rate = bytes / since(start) * static_cast<double>(forecast_.threads);
  forecast_.seconds = static_cast<double>(forecast_.bytes_in) / rate;
}

void QuantizeJob::begin() {
  const Json facts = source_facts(options_.source, source_.store());
  const Json options = options_json(options_, selection_.section);
  std::error_code error;
  if (options_.resume) {
    state_->journal = read_journal(partial_, facts, options);
  } else {
    if (path_exists(partial_)) fs::remove_all(partial_, error);
    if (error) fail("{}: cannot remove: {}", partial_, error.message());
    make_folder(partial_);
    state_->journal = {facts, options, {}, {}, {}};
    write_journal(partial_, state_->journal);
  }
}

void QuantizeJob::write_shard(size_t number, ThreadPool& pool, const OnQuantizeProgress& progress) {
  const OutputPlan::Shard& shard = plan_.shards[number];
  const std::string path = join_path(partial_, shard.name);
  const auto done = [&](uint64_t bytes, int layer) {
    const uint64_t sum = state_->done += bytes;
    if (progress) progress({sum, plan_.source_bytes, layer});
  };
  for (const FinishedShard& f : state_->journal.shards) {
    if (f.name != shard.name) continue;
    if (!ShardFile::is_whole(plan_, number, partial_, f))
      fail("{}: is not what the unfinished run wrote; --overwrite begins anew", path);
    for (const WorkUnit& u : shard.units) done(u.source_bytes, u.layer);
    return;
  }
  ShardFile file(plan_, number, partial_, state_->journal.begun);
  for (size_t i = 0; i < file.done(); ++i) done(shard.units[i].source_bytes, shard.units[i].layer);
  Calibration* calibration = state_->calibration.get();
  const auto waits = [&](const WorkUnit& u) {  // whether a unit waits for rows of its layer
    return calibration != nullptr && u.kind == WorkUnit::Kind::kEncode &&
           calibration->runs(u.layer) && !calibration->has(u.layer);
  };
  for (size_t from = file.done(); from < shard.units.size();) {
    if (waits(shard.units[from])) calibration->reach(shard.units[from].layer);
    size_t to = from + 1;
    while (to < shard.units.size() && !waits(shard.units[to])) ++to;
    WorkCounter next;
    std::atomic<size_t> seats{0};
    pool.run([&](ThreadPool::Member&) {
      if (seats.fetch_add(1) >= forecast_.threads) return;  // memory suffices for that many threads
      LoadBuffer buffer;
      for (size_t i = from + next.take(); i < to; i = from + next.take()) {
        const WorkUnit& unit = shard.units[i];
        buffer.reset();
        const UnitResult out = do_unit(unit, source_.store(), options_, calibration, buffer);
        file.put(i, out.tensors);
        if (!out.reports.empty()) {
          const std::lock_guard lock(state_->mutex);
          state_->reports.insert(state_->reports.end(), out.reports.begin(), out.reports.end());
        }
        done(unit.source_bytes, unit.layer);
      }
    });
    from = to;
    if (from == shard.units.size()) break;
    state_->journal.begun = file.settle(from);  // a layer whose calibration is already done
    keep_journal();
  }
  state_->journal.begun.reset();
  state_->journal.shards.push_back(file.finish());
  keep_journal();
}

void QuantizeJob::keep_journal() {
  std::sort(state_->reports.begin(), state_->reports.end(),
            [](const ModuleReport& a, const ModuleReport& b) { return a.name < b.name; });
  std::map<std::string, Json> made;  // results of this run and of the run that it resumes
  for (const Json& m : state_->journal.modules)
    if (const Json* name = m.find("name"); name != nullptr && name->is_string())
      made.insert_or_assign(name->as_string(), m);
  for (const ModuleReport& r : state_->reports)
    made.insert_or_assign(r.name, Json::object({{"name", r.name},
                                                {"method", name_of(r.method)},
                                                {"rows", r.rows},
                                                {"loss", r.loss},
                                                {"reason", r.reason}}));
  state_->journal.modules.clear();
  for (auto& [name, m] : made) state_->journal.modules.push_back(std::move(m));
  write_journal(partial_, state_->journal);
}

const std::vector<ModuleReport>& QuantizeJob::reports() const { return state_->reports; }

void QuantizeJob::check_method() const {
  const CalibrationOptions& c = options_.calibration;
  for (const auto& [name, value] :
       {std::pair("damp", static_cast<double>(options_.damp)), {"min-rows", options_.min_rows}})
    if (!(value >= 0) || !std::isfinite(value))
      fail("--{} is {}; expected a number from 0 on", name, value);
  if (options_.method == QuantizeMethod::kGptq && c.files.empty())
    fail("--method gptq needs --calib: text, chats or token ids that the model is run on");
  const bool stored =
      std::any_of(selection_.chosen.begin(), selection_.chosen.end(),
                  [](const ChosenModule& m) { return has_stored_input_scale(m.scheme); });
  if (options_.method == QuantizeMethod::kRtn && !c.files.empty() && !stored)
    fail("--method rtn reads no --calib for this scheme; expected search or gptq");
  if (c.files.empty()) return;
  try {
    (void)decoder_spec(source_.config());
  } catch (const Error& e) {
    fail("--calib needs a model that runs whole: {}", e.what());
  }
}

// Determines which modules need calibration, and its cost.
void QuantizeJob::plan_calibration() {
  const CalibrationOptions& c = options_.calibration;
  if (c.files.empty()) return;
  TokenWindows documents;
  const auto vocab = source_.config().vocab;
  for (const std::string& f : c.files)
    for (std::vector<int32_t>& d : read_token_documents(f, options_.source)) {
      for (const int32_t t : d)
        if (t >= vocab) fail("{}: token {} is not in the vocabulary of {} tokens", f, t, vocab);
      documents.push_back(std::move(d));
    }
  state_->windows =
      calibration_windows(documents, c.context, c.tokens / std::max<size_t>(1, c.context), c.seed);
  for (const ChosenModule& m : selection_.chosen) state_->wanted.insert(m.module->name);
  state_->cost = calibration_cost(source_, state_->wanted, state_->windows,
                                  options_.method != QuantizeMethod::kRtn);
  forecast_.tokens = tokens_of(state_->windows);
  for (const MoeBlock& b : source_.moe_blocks())
    forecast_.expert_rows = c.all_experts ? forecast_.tokens
                                          : forecast_.tokens * b.spec.router.top_k /
                                                std::max<size_t>(1, b.spec.experts);
}

void QuantizeJob::make_calibration(ThreadPool& pool, const OnQuantizeProgress& progress) {
  if (options_.calibration.files.empty()) return;
  CalibrationSettings settings;
  settings.all_experts = options_.calibration.all_experts;
  settings.moments = options_.method != QuantizeMethod::kRtn;
  if (forecast_.scratch > 0)
    settings.scratch = options_.scratch.empty() ? partial_ : options_.scratch;
  if (progress)
    settings.begins = [this, progress](size_t stage) {
      progress({state_->done, plan_.source_bytes, static_cast<int>(stage), "calibrating"});
    };
  if (settings.moments) settings.made = [this](Range layers) { return made_layers(layers); };
  state_->calibration = std::make_unique<Calibration>(source_, state_->windows, pool,
                                                      state_->wanted, std::move(settings));
}

Checkpoint QuantizeJob::made_layers(Range layers) const {
  std::vector<StoredElsewhere> modules;
  std::vector<std::string> paths;
  for (const OutputPlan::Shard& shard : plan_.shards) {
    bool any = false;
    for (const WorkUnit& u : shard.units) {
      if (u.layer < 0 || static_cast<size_t>(u.layer) < layers.begin ||
          static_cast<size_t>(u.layer) >= layers.end)
        continue;
      any = any || u.kind == WorkUnit::Kind::kEncode || u.kind == WorkUnit::Kind::kBias;
      for (const Module* m : u.modules)
        if (u.kind == WorkUnit::Kind::kEncode && m->loaded())
          modules.push_back({m->name, u.scheme});
    }
    if (!any) continue;
    const std::string path = join_path(partial_, shard.name);
    paths.push_back(path_exists(path) ? path : path + ".tmp");
  }
  return source_.with_matrices(modules, paths);
}

void QuantizeJob::run(ThreadPool& pool, const OnQuantizeProgress& progress) {
  begin();
  make_calibration(pool, progress);
  for (size_t i = 0; i < plan_.shards.size(); ++i) write_shard(i, pool, progress);
  state_->calibration.reset();
  finish();
}

std::string QuantizeJob::config_text() const {
  const std::string path = join_path(options_.source, "config.json");
  const std::string text = read_text_file(path, kMaxConfig);
  const std::string section = selection_.section.dump(2);
  const Json* nested = source_.config().raw.find("text_config");
  const bool inside = nested != nullptr && nested->find("quantization_config") != nullptr &&
                      source_.config().raw.find("quantization_config") == nullptr;
  if (inside)
    fail("{}: text_config holds a quantization_config of its own; expected it at the top", path);
  std::string made = with_member(text, "quantization_config", section);
  if (!options_.dtype) return made;
  if (nested != nullptr &&
      (nested->find("dtype") != nullptr || nested->find("torch_dtype") != nullptr))
    fail("{}: text_config names a type of its own, which --dtype does not change", path);
  const Json& raw = source_.config().raw;
  const std::string name = fmt::format("\"{}\"", dtype_name(*options_.dtype));
  const bool old = raw.find("torch_dtype") != nullptr;
  if (old) made = with_member(made, "torch_dtype", name);
  return old && raw.find("dtype") == nullptr ? made : with_member(made, "dtype", name);
}

Json QuantizeJob::index_json() const {
  Json map = Json::object();
  uint64_t bytes = 0;
  std::vector<const PlannedTensor*> sorted;
  for (const PlannedTensor& t : plan_.tensors) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](const PlannedTensor* a, const PlannedTensor* b) {
    return a->info.name < b->info.name;
  });
  for (const PlannedTensor* t : sorted) {
    map.set(t->info.name, plan_.shards[t->shard].name);
    bytes += t->info.bytes;
  }
  return Json::object(
      {{"metadata", Json::object({{"total_parameters", plan_.parameters}, {"total_size", bytes}})},
       {"weight_map", map}});
}

// Checks the other files before the work, so that an unreadable one does not fail at the end.
void QuantizeJob::find_others() {
  std::error_code error;
  for (const std::string& name : folder_names(options_.source)) {
    const fs::path place = join_path(options_.source, name);
    if (!is_copied(name) || (fs::exists(place, error) && !fs::is_regular_file(place, error)))
      continue;
    const std::string path = file_in_folder(options_.source, name, options_.links);
    if (::access(path.c_str(), R_OK) != 0) fail("{}: {}", path, open_failure(path, errno));
    others_.emplace_back(path, copied_name(name));
  }
  std::sort(others_.begin(), others_.end());
}

void QuantizeJob::finish() {
  const std::string difference = first_difference(
      state_->journal.source, source_facts(options_.source, source_.store()), "source");
  if (!difference.empty())
    fail("{}: the source was changed during the run: {}", options_.source, difference);
  std::error_code error;
  for (const std::string& name : folder_names(partial_))  // remains of a stopped run
    if (name.ends_with(".tmp")) fs::remove(join_path(partial_, name), error);
  for (const auto& [from, name] : others_) copy_file_bytes(from, join_path(partial_, name));
  if (plan_.index) write_text_file(join_path(partial_, kIndexName), index_json().dump(2) + "\n");
  write_text_file(join_path(partial_, "config.json"), config_text());
  sync_folder(partial_);
  if (path_exists(options_.target)) {
    const std::string old = options_.target + ".replaced";
    fs::remove_all(old, error);
    rename_path(options_.target, old);
    rename_path(partial_, options_.target);
    fs::remove_all(old, error);
  } else {
    rename_path(partial_, options_.target);
  }
  sync_folder(parent_of(options_.target));
}

}  // namespace moebius
