// SPDX-License-Identifier: Apache-2.0
// Opens a folder: config.json, quantization_config, headers, modules, schemes and MoE blocks, in
// this order. It finds everything that can be wrong without reading payloads.
#include "checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "checkpoint/config_defaults.h"
#include "checkpoint/fused_halves.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/module_scheme.h"
#include "checkpoint/moe_blocks.h"
#include "checkpoint/no_output.h"
#include "checkpoint/token_table.h"
#include "gguf/config.h"
#include "gguf/model_files.h"
#include "gguf/names.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxConfigBytes = uint64_t{64} << 20, kComparedAtOnce = uint64_t{1} << 20;

std::string read_config(const std::string& path) {
  std::string text = read_text_file(path, kMaxConfigBytes);
  if (!is_utf8(text)) fail("{}: not valid UTF-8", printable(path));
  return text;
}

// Returns why a folder without config.json cannot be opened: empty, or another form of a model.
std::string without_config(const std::string& folder) {
  const auto has = [&](std::string_view name) { return path_exists(join_path(folder, name)); };
  if (has("params.json") || has("consolidated.safetensors") ||
      has("consolidated.safetensors.index.json"))
    return "this is Mistral's own form of a model (params.json, consolidated.safetensors); take "
           "the Hugging Face form of the same model, which has config.json and "
           "model.safetensors";
  std::error_code error;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, error)) {
    const std::string kind = e.path().extension();
    if (kind == ".bin" || kind == ".pt" || kind == ".pth")
      return fmt::format(
          "this folder holds PyTorch files ('{}'), which are not read; take the safetensors form "
          "of "
          "the same model",
          printable(e.path().filename().string()));
  }
  if (fs::is_empty(folder, error))
    return "the folder is empty; expected config.json and safetensors files";
  return "expected the model's config";
}

// Returns the quantization section of a folder whose config.json has none, from the other files
// that may hold it.
QuantConfig other_config(const std::string& folder, const Json& config,
                         std::vector<std::string>& warnings) {
  for (const ConfigFile& file : other_config_files()) {
    const std::string path = join_path(folder, file.name);
    if (!path_exists(path)) continue;
    return placing_errors(at_file("config", path), [&] {
      return QuantConfig::parse_file(parse_json(read_config(path), path), path, file.method, config,
                                     warnings);
    });
  }
  return {};
}

// Warns when a file of the same method beside config.json contradicts its section. The section in
// config.json applies.
void compare_files(const std::string& folder, const Json& config, const QuantConfig& quant,
                   std::vector<std::string>& warnings) {
  for (const ConfigFile& file : other_config_files()) {
    const std::string path = join_path(folder, file.name);
    if (file.method != quant.method() || !quant.rules() || !path_exists(path)) continue;
    const std::string own = quant.rules()->summary();
    if (own.empty()) continue;
    try {
      std::vector<std::string> unsaid;
      const QuantConfig other = QuantConfig::parse_file(parse_json(read_config(path), path), path,
                                                        file.method, config, unsaid);
      const std::string theirs = other.rules() != nullptr ? other.rules()->summary() : "nothing";
      if (theirs != own)
        warnings.push_back(fmt::format("{} says {}, but config.json says {}; config.json counts",
                                       file.name, theirs, own));
    } catch (const Error& e) {
      warnings.push_back(
          fmt::format("{} is not read, because config.json counts: {}", file.name, e.what()));
    }
  }
}

// Checks weight_shape of tensors that hold several matrices: [2] or [3] integers, or one pair per
// expert.
void check_fused_shapes(const std::vector<FusedShape>& shapes, const TensorStore& store) {
  for (const FusedShape& f : shapes) {
    const TensorInfo& t = *f.tensor;
    const bool integers = t.dtype == DType::kI64 || t.dtype == DType::kI32;
    const uint64_t count = t.bytes * 8 / bits_of(t.dtype);
    if (!integers || count < 2 || count > 3 * std::max<uint64_t>(f.experts, 1))
      fail("{} is {}; expected two or three integers", store.where(t), describe(t));
    const std::vector<int64_t> last = read_integers(store, t, count - 2, 2);
    const int64_t N = last[0], K = last[1];
    const auto rows = static_cast<int64_t>(f.rows), cols = static_cast<int64_t>(f.cols);
    if ((N != 0 || K != 0) && (N != rows || (cols != 0 && K != cols)))
      fail("{} says {} x {}; expected {} x {}", store.where(t), N, K, rows, cols);
  }
}

bool is_bias_alone(const ModuleTensors& tensors) {
  size_t found = 0;
  for (const TensorRef& ref : tensors.by_role) found += ref ? 1 : 0;
  return found == 1 && tensors[Role::kBias];
}

// Returns whether `head` is only a matrix with the same bytes as the table.
bool stored_again(const ModuleTensors& head, const ModuleTensors& table, const TensorStore& store) {
  const TensorRef &a = head[Role::kWeight], &b = table[Role::kWeight];
  for (size_t i = 0; i < static_cast<size_t>(Role::kCount); ++i)
    if (i != static_cast<size_t>(Role::kWeight) && (head.by_role[i] || table.by_role[i]))
      return false;
  if (!a || !b || a.info->dtype != b.info->dtype || a.info->shape != b.info->shape) return false;
  std::vector<uint8_t> pieces[2];
  for (uint64_t at = 0, end = a.info->bytes; at < end; at += kComparedAtOnce) {
    const uint64_t bytes = std::min(kComparedAtOnce, end - at);
    for (auto& piece : pieces) piece.resize(bytes);
    store.read(*a.info, at, pieces[0]);
    store.read(*b.info, at, pieces[1]);
    if (pieces[0] != pieces[1]) return false;
  }
  return true;
}

// Throws Error unless the folder can be entered and has config.json.
void check_config_file(const std::string& folder) {
  const std::string path = join_path(folder, "config.json");
  if (::access(folder.c_str(), X_OK) != 0)
    fail_at({"file", folder, "", "", ""}, "{}: {}", printable(folder), open_failure(folder, errno));
  if (!path_exists(path))
    fail_at({"config", path, "", "", ""}, "{}: no such file; {}", printable(path),
            without_config(folder));
}

// Returns the place that errors of a module name: the module, and the file of its first tensor.
ErrorPlace place_of(const Module& module, const TensorStore& store) {
  ErrorPlace place{"file", "", "", module.name, ""};
  for (const TensorRef& ref : module.plan.tensors.by_role)
    if (ref && place.file.empty()) place.file = store.file_of(*ref.info).path();
  return place;
}

}  // namespace

void check_model_files(const std::string& folder) {
  if (const auto file = gguf_file_of(folder)) {
    (void)architecture_of(*open_gguf(*file));
    return;
  }
  check_config_file(folder);
  check_weight_files(folder);
}

Checkpoint Checkpoint::open(const std::string& folder, Links links) {
  const auto file = gguf_file_of(folder);
  const std::shared_ptr<const Gguf> gguf = file ? open_gguf(*file) : nullptr;
  std::error_code error;
  if (gguf == nullptr && !fs::is_directory(folder, error))
    fail_at({"file", folder, "", "", ""},
            "{}: not a folder{}; expected a model folder with config.json", folder,
            error ? " (" + error.message() + ")" : "");
  Checkpoint c;
  c.folder_ = folder;
  const std::string config_path = gguf != nullptr ? *file : join_path(folder, "config.json");
  if (gguf == nullptr) check_config_file(folder);
  placing_errors(at_file("config", config_path), [&] {
    Json config = gguf != nullptr ? gguf_config(*gguf, c.warnings_)
                                  : parse_json(read_config(config_path), config_path);
    if (gguf != nullptr) config.set(std::string(kDefaultsMember), Json::object());
    c.config_ = ModelConfig::parse(config, config_path, c.warnings_);
    QuantConfig quant = QuantConfig::parse(config, config_path, c.warnings_);
    if (quant.method().empty() && gguf == nullptr)
      quant = other_config(folder, config, c.warnings_);
    else if (gguf == nullptr)
      compare_files(folder, config, quant, c.warnings_);
    c.quant_ = std::make_shared<const QuantConfig>(std::move(quant));
  });
  const std::string generation = "generation_config.json";
  if (const auto found = read_model_text(folder, generation, kMaxConfigBytes)) {
    const std::string& place = found->place;
    placing_errors(at_file("config", place), [&] {
      c.generation_ = parse_json(found->text, place);
      if (!c.generation_.is_object())
        fail("{}: {} at the top; expected an object", place, kind_name(c.generation_.kind()));
    });
  }
  placing_errors(at_file("file", folder), [&] {
    if (gguf != nullptr) {
      const GgufNames names = name_tensors(*gguf, c.config_.raw);
      c.store_ = std::make_unique<TensorStore>(TensorStore::of_gguf(*gguf, names, links));
      c.understand(c.store_->tensors());
      for (const GgufNames::Unused& u : names.unused)
        c.unused_.push_back({u.tensor->name, u.reason, u.tensor->bytes});
    } else {
      c.store_ =
          std::make_unique<TensorStore>(TensorStore::open_folder(folder, c.warnings_, links));
      c.understand(c.store_->tensors());
    }
  });
  return c;
}

void Checkpoint::understand(std::span<const TensorInfo> tensors) {
  const TensorStore& store = *store_;
  if (config_.layers == 0) {  // unknown family: counts layers by the tensors' names
    for (const TensorInfo& t : tensors) {
      const TensorName n = parse_tensor_name(t.name, config_, nullptr, quant().aliases());
      config_.layers = std::max<int64_t>(config_.layers, n.layer + 1);
    }
    config_.layers = std::min<int64_t>(config_.layers, 10000);
    config_.moe_layer.assign(static_cast<size_t>(config_.layers), false);
  }
  const std::optional<QuantArgs>& cache = quant().kv_cache();
  const bool cache_scales = cache && cache->bits == 8 && cache->symmetric &&
                            cache->dynamic == Dynamic::kStatic && config_.kv_lora_rank == 0;
  ModuleMap map = map_modules(
      tensors, config_, folder_, [&](const TensorInfo& t) { return store.where(t); },
      quant().aliases(), cache_scales);
  if (!map.reshaped->empty()) {  // the reshaped infos live as long as the store
    const auto kept =
        std::make_shared<std::pair<decltype(store_), decltype(map.reshaped)>>(store_, map.reshaped);
    store_ = {kept, kept->first.get()};
  }
  check_fused_shapes(map.fused_shapes, store);
  check_experts_present(map, config_, folder_);
  unused_ = std::move(map.unused);
  warnings_.insert(warnings_.end(), map.warnings.begin(), map.warnings.end());
  settle_output(map);
  RepeatedWarnings repeated;
  std::vector<Part> parts;
  std::vector<std::string> paths, blocks;
  modules_.reserve(map.modules.size());
  for (MappedModule& m : map.modules) {
    if (has_matrix(m.module))
      placing_errors([&] { return place_of(m.module, store); },
                     [&] { decide_and_plan(m, quant(), store, unused_, repeated); });
    else
      plan_vector(m.module);
    parts.push_back(m.part);
    paths.push_back(std::move(m.path));
    blocks.push_back(std::move(m.block));
    modules_.push_back(std::move(m.module));
  }
  repeated.append_to(warnings_);
  name_modules();
  moe_blocks_ =
      build_moe_blocks({folder_, config_, modules_, parts, paths, blocks, store, warnings_});
}

void Checkpoint::name_modules() {
  for (size_t i = 0; i < modules_.size(); ++i)
    if (!by_name_.try_emplace(modules_[i].name, i).second)
      fail("{}: two modules are called {}", folder_, printable(modules_[i].name));
}

Checkpoint Checkpoint::with_matrices(std::span<const StoredElsewhere> modules,
                                     std::span<const std::string> paths) const {
  struct Kept {  // holds what modules point at; lives as long as the store
    std::shared_ptr<const TensorStore> own;
    std::vector<TensorInfo> tensors;
    TensorStore store;
  };
  const auto kept = std::make_shared<Kept>();
  kept->own = store_;
  kept->store = store_->with_files(paths, kept->tensors);
  std::unordered_map<std::string_view, const TensorInfo*> by_name;
  for (const TensorInfo& t : kept->tensors) by_name.emplace(t.name, &t);

  Checkpoint c;
  c.folder_ = folder_;
  c.config_ = config_;
  c.quant_ = quant_;
  c.generation_ = generation_;
  c.store_ = {kept, &kept->store};
  c.modules_ = modules_;
  c.unused_ = unused_;
  c.warnings_ = warnings_;
  c.name_modules();
  c.moe_blocks_ = moe_blocks_;
  for (MoeBlock& b : c.moe_blocks_) {
    const auto moved = [&](const Module*& m) {
      if (m != nullptr) m = c.modules_.data() + (m - modules_.data());
    };
    for (auto& parts : b.experts) std::for_each(parts.begin(), parts.end(), moved);
    for (auto* parts : {&b.shared, &b.layer_shared})
      std::for_each(parts->begin(), parts->end(), moved);
    moved(b.router), moved(b.shared_gate);
  }
  for (const StoredElsewhere& other : modules) {
    std::vector<Module*> parts;  // one module, or gate and up of one stored matrix
    if (const auto it = c.by_name_.find(other.module); it != c.by_name_.end())
      parts.push_back(&c.modules_[it->second]);
    else
      for (Module& m : c.modules_)
        if (whole_of(m.plan.tensors) == other.module) parts.push_back(&m);
    if (parts.empty()) fail("{}: has no module {}", folder_, printable(other.module));
    for (Module* m : parts) {
      const TensorRef weight = m->plan.tensors[Role::kWeight], bias = m->plan.tensors[Role::kBias];
      ModuleTensors tensors;
      tensors.name = m->name;
      for (size_t r = 0; r <= static_cast<size_t>(Role::kBias); ++r)
        if (const auto t =
                by_name.find(fmt::format("{}.{}", other.module, suffix_of(static_cast<Role>(r))));
            t != by_name.end())
          tensors.by_role[r].info = t->second;
      if (m->name != other.module) {
        tensors[Role::kWeightShape] = {};
        take_half(tensors, weight.info->shape[0], m->projection, weight.row_step);
      }
      if (!tensors[Role::kBias]) tensors[Role::kBias] = bias;
      m->plan =
          reader_for(other.scheme.format)
              .plan(tensors, other.scheme, *c.store_, m->plan.N, m->plan.K, c.quant().version());
      m->decision.scheme = other.scheme;
      m->bytes = 0;
      for (const TensorRef& ref : tensors.by_role)
        if (ref) m->bytes += bytes_of(ref);
      const auto reason =
          unsupported_reason(other.scheme, m->kind == ModuleKind::kExpert && !m->shared_expert);
      m->supported = !reason;
      m->reason = reason.value_or("");
    }
  }
  return c;
}

// Decides what the output projection is. lm_head may be tied to the embedding; the stored tensors
// and the config must agree. A head that is stored beside the table is used, as transformers does,
// unless it equals the table; a head of which only a bias is stored multiplies by the table.
void Checkpoint::settle_output(ModuleMap& map) {
  const auto find = [&](Part part) {
    return std::find_if(map.modules.begin(), map.modules.end(),
                        [&](const MappedModule& m) { return m.part == part; });
  };
  const auto head = find(Part::kLmHead);
  const auto table = find(Part::kEmbedding);
  if (head == map.modules.end()) {
    const Family* family = family_by_key(config_.family);
    if (config_.tie_embeddings || family == nullptr || table == map.modules.end() ||
        has_no_output(config_) || (config_.tie_stated && lenient(family)))
      return;
    if (config_.tie_stated)
      fail("{}: no tensor belongs to lm_head, and config.json says tie_word_embeddings is false",
           folder_);
    warnings_.push_back(
        fmt::format("{}: no lm_head is stored; the embedding is taken for it", folder_));
    config_.tie_embeddings = true;
    return;
  }
  if (!config_.tie_embeddings) return;
  ModuleTensors& own = head->module.plan.tensors;
  if (table != map.modules.end() && is_bias_alone(own)) {  // ERNIE-4.5 stores a bias alone
    const TensorRef bias = own[Role::kBias];
    own.by_role = table->module.plan.tensors.by_role;
    own[Role::kBias] = bias;
    return;
  }
  if (table == map.modules.end() ||
      !stored_again(head->module.plan.tensors, table->module.plan.tensors, *store_)) {
    warnings_.push_back(
        fmt::format("{}: config.json ties lm_head to the embedding, but a lm_head of its own is "
                    "stored; it is used",
                    folder_));
    config_.tie_embeddings = false;
    return;
  }
  for (const TensorRef& ref : head->module.plan.tensors.by_role)
    if (ref)
      unused_.push_back(
          {ref.info->name, "config.json ties lm_head to the embedding, whose values it repeats"});
  map.modules.erase(head);
}

const Module* Checkpoint::find_module(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &modules_[it->second];
}

const MoeBlock* Checkpoint::find_moe(std::string_view name) const {
  if (name.ends_with(".experts")) name.remove_suffix(8);
  for (const MoeBlock& b : moe_blocks_)
    if (b.name == name) return &b;
  return nullptr;
}

const Module* token_table(const Checkpoint& checkpoint) {
  for (const Module& m : checkpoint.modules())
    if (m.kind == ModuleKind::kEmbedding && m.layer < 0 &&
        in_list(kTokenTables, std::string_view(m.name).substr(m.name.rfind('.') + 1)))
      return &m;
  return nullptr;
}

bool multiplies_by_table(const Checkpoint& checkpoint, const Module& m) {
  if (m.kind != ModuleKind::kLmHead || !m.plan.tensors[Role::kWeight]) return false;
  const Module* table = token_table(checkpoint);
  return table != nullptr &&
         table->plan.tensors[Role::kWeight].info == m.plan.tensors[Role::kWeight].info;
}

const Module* Checkpoint::output_module() const {
  for (const Module& m : modules_)
    if (m.kind == ModuleKind::kLmHead) return &m;
  return config_.tie_embeddings ? token_table(*this) : nullptr;
}

void Checkpoint::require_supported() const {
  for (const Module& m : modules_)
    if (!m.supported && !m.tower)
      fail_at({"unsupported", folder_, "", m.name, ""}, "{}: {} cannot be run: {}", folder_, m.name,
              m.reason);
}

}  // namespace moebius
