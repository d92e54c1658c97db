// SPDX-License-Identifier: Apache-2.0
// Predicts whether `run` will work and what it will take, from headers and small files alone: it
// asks the same questions as loading, in the same order, without reading a weight.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "gguf/model_files.h"
#include "model/plan/forecast.h"
#include "report/inspect.h"
#include "report/modules.h"
#include "runtime/mapped_file.h"
#include "runtime/memory.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

// Describes what happens if weights exceed memory.
std::string beyond_memory(const Checkpoint& c, const ModelPlan& plan, uint64_t free) {
  const auto human = [](uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const bool experts = !c.moe_blocks().empty();
  std::string text =
      fmt::format("{} of memory are free: {}", human(free),
                  experts ? "experts are read from disk" : "it runs from a file with --pack-dir");
  const std::span<const SafetensorsFile> files = c.store().files();
  const auto largest = std::max_element(
      files.begin(), files.end(),
      [](const SafetensorsFile& a, const SafetensorsFile& b) { return a.size() < b.size(); });
  Rates rates;
  rates.memory = free;
  rates.disk = largest == files.end() ? 0 : disk_read_rate(largest->path());
  if (!experts || rates.disk <= 0) return text;
  const Forecast f = forecast(plan, rates);
  return text + fmt::format(
                    ", about {:.2g} tokens/s if all are equally likely: {} per token at {}/s, "
                    "measured now",
                    f.disk_tokens_per_second, human(f.disk_bytes),
                    human(static_cast<uint64_t>(rates.disk)));
}

// Returns why a planned model cannot run; empty when it can.
std::string refusal(const Checkpoint& c, const DecoderSpec& spec) {
  for (const MoeBlock& b : c.moe_blocks())
    if (!spec.whole_blocks && !b.routing_reason.empty())
      return fmt::format("{}: {}", b.name, b.routing_reason);
  return c.output_module() == nullptr ? "it has no output projection (lm_head)" : "";
}

void look_at_text(const Checkpoint& c, RunFacts& f) {
  const bool gguf = gguf_file_of(c.folder()).has_value();
  std::string_view file;
  for (const char* name : {"tokenizer.json", "tiktoken.model"})
    if (file.empty() && has_model_text(c.folder(), name)) file = name;
  if (file.empty()) {
    f.notes.push_back(fmt::format("no {}: token ids only", gguf ? "tokenizer" : "tokenizer.json"));
    return;
  }
  if (gguf) file = "tokenizer.ggml";
  try {
    const Tokenizer tokenizer = Tokenizer::from_folder(c.folder());
    tokenizer.check_fits(static_cast<size_t>(std::max<int64_t>(0, c.config().vocab)));
    f.tokenizer = fmt::format("{}, {} tokens", file, tokenizer.vocab_size());
    for (std::string& note : model_text_notes(c.folder())) f.notes.push_back(std::move(note));
  } catch (const Error& e) {
    f.notes.push_back(fmt::format("token ids only: {}", e.what()));
    return;
  }
  try {
    const ChatTemplates templates = ChatTemplates::from_folder(c.folder());
    if (templates.empty()) {
      f.notes.emplace_back("no chat template");
      return;
    }
    const Json messages = parse_json(R"([{"role": "user", "content": "Hello"}])", "message");
    ChatInput input;
    input.messages = &messages;
    input.steps = 1'000'000;
    templates.render(input);
    f.chat_template = gguf ? "tokenizer.chat_template"
                      : has_model_text(c.folder(), "chat_template.jinja") ? "chat_template.jinja"
                                                                          : "tokenizer_config.json";
  } catch (const Error& e) {
    f.notes.push_back(fmt::format("no chat: {}", e.what()));
  }
}

// Returns usual context lengths, up to the one for which the model was made.
std::vector<uint64_t> usual_contexts(uint64_t most) {
  std::vector<uint64_t> list;
  for (const uint64_t n : {4096u, 32768u})
    if (most == 0 || n < most) list.push_back(n);
  if (most != 0) list.push_back(most);
  return list;
}

}  // namespace

RunFacts run_facts(const Checkpoint& c, uint64_t context) {
  RunFacts f;
  const ModelConfig& config = c.config();
  f.context = static_cast<uint64_t>(std::max<int64_t>(0, config.max_positions));
  Wish wish;
  ModelPlan plan;
  try {
    wish.type = activation_type("auto", config.dtype);
    plan = plan_model(c, wish, {});
    f.reason = refusal(c, plan.spec);
  } catch (const Error& e) {
    f.reason = e.what();
  }
  f.works = f.reason.empty();
  for (std::string& note : model_file_notes(c.folder())) f.notes.push_back(std::move(note));
  const std::vector<PlannedModule> alone =
      f.works ? std::vector<PlannedModule>() : plan_modules_on_cpu(c, wish);
  const std::vector<PlannedModule>& modules = f.works ? plan.ranks[0].modules : alone;
  f.packed_bytes = f.works ? plan.ranks[0].sum(kHostMemory) : sum_of(modules);
  for (const PlannedModule& m : modules)
    if (const TensorInfo* t = m.module->plan.tensors[Role::kWeight].info)
      f.packed_by_type[t->gguf != nullptr ? t->gguf->name : name_of(t->dtype)] += m.use->packed;
  if (!f.works) return f;
  if (has_tower(c)) f.notes.emplace_back(kTextOnly);
  uint64_t tables = 0;
  for (const Module& m : c.modules()) tables += m.kind == ModuleKind::kTable ? m.bytes : 0;
  if (tables > 0)
    f.notes.push_back(
        fmt::format("{} of n-gram tables stay in their files, which must not change while it runs",
                    human_bytes(static_cast<double>(tables))));
  look_at_text(c, f);
  f.kv_bytes_per_token = plan.kv.bytes_per_token();
  const std::vector<uint64_t> lengths =
      context != 0 ? std::vector<uint64_t>{context} : usual_contexts(f.context);
  for (const uint64_t n : lengths) f.memory.push_back({n, f.packed_bytes + plan.kv.bytes_of(n)});
  if (const uint64_t free = available_memory_bytes(); free != 0 && f.packed_bytes > free)
    f.notes.push_back(beyond_memory(c, plan, free));
  if (context != 0 && f.context != 0 && context > f.context)
    f.notes.push_back(fmt::format("{} is beyond the model's context of {}", context, f.context));
  return f;
}

PredictorFacts predictor_facts(const Checkpoint& c, const RunFacts& run) {
  PredictorFacts f;
  const bool stored = std::any_of(c.unused().begin(), c.unused().end(),
                                  [](const UnusedTensor& t) { return t.prediction; });
  if (!stored || !run.works) return f;
  try {
    Wish wish;
    wish.type = activation_type("auto", c.config().dtype);
    wish.predictor = true;
    const ModelPlan plan = plan_model(c, wish, {});
    f.kv_bytes_per_token = plan.kv.bytes_per_token() - run.kv_bytes_per_token;
    f.packed_bytes = plan.ranks[0].sum(kHostMemory) - run.packed_bytes;
    f.checkpoint = std::make_shared<const Checkpoint>(c.open_predictor());
    f.modules = group_modules(*f.checkpoint);
  } catch (const Error& e) {
    f = {};
    f.reason = e.what();
  }
  return f;
}

}  // namespace moebius
