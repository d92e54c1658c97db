// SPDX-License-Identifier: Apache-2.0
#include "model/load/layer_set_loader.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/token_table.h"
#include "model/graph/gathered_ops.h"
#include "model/ranks.h"

namespace moebius {
namespace {

const Module& embedding_of(const Checkpoint& checkpoint) {
  const Module* found = token_table(checkpoint);
  if (found == nullptr) fail("{}: has no token embedding", checkpoint.folder());
  return *found;
}

const Module& output_of(const Checkpoint& checkpoint) {
  const Module* output = checkpoint.output_module();
  if (output == nullptr) fail("{}: has no output projection (lm_head)", checkpoint.folder());
  return *output;
}

// Returns whether the part has all layers and no output projection: its result is the rows after
// the final norm.
bool gives_rows(const ModelPart& part) {
  return !part.projects && part.ranks == nullptr && part.first_stage() &&
         part.own.end == part.whole.layers.size();
}

void check_ends(const Checkpoint& checkpoint, size_t vocab, size_t hidden, bool projects) {
  const Module& embedding = embedding_of(checkpoint);
  if (embedding.plan.N < vocab || embedding.plan.K != hidden)
    fail("{} is [{}, {}]; expected at least {} tokens of {}", embedding.name, embedding.plan.N,
         embedding.plan.K, vocab, hidden);
  if (!projects) return;
  const Module& output = output_of(checkpoint);
  if (output.plan.N < vocab)
    fail("{} has {} outputs; expected at least {}", output.name, output.plan.N, vocab);
}

}  // namespace

LayerSetLoader::LayerSetLoader(const Checkpoint& checkpoint, const ModelPart& part,
                               const KvPlan& kv, const KvChoice& kv_options,
                               LayerLoadOptions options, ExpertsOf experts_of)
    : c_{checkpoint, part, part.spec, kv, kv_options, std::move(options), std::move(experts_of)} {
  c_.options.progress = [this, tell = std::move(c_.options.progress)](uint64_t bytes) {
    read_ += bytes;
    if (tell) tell(bytes);
  };
}

void LayerSetLoader::begin(LayerSet& to) {
  c_.to = &to;
  const ModelConfig& config = c_.checkpoint.config();
  to.hidden = static_cast<size_t>(config.hidden);
  to.vocab = static_cast<size_t>(config.vocab);
  to.type = c_.options.x_type;
  to.own = c_.part.own;
  to.streams = c_.spec.streams.count;
  to.gates = to.streams > 1 ? c_.spec.streams.gates() : 0;
}

void LayerSetLoader::load(LayerSet& to) {
  begin(to);
  check_ends(c_.checkpoint, to.vocab, to.hidden, !gives_rows(c_.part));
  std::vector<RopeSpec> ropes = {c_.spec.rope};
  ropes.insert(ropes.end(), c_.spec.other_ropes.begin(), c_.spec.other_ropes.end());
  if (c_.spec.rope_factors != nullptr)
    for (RopeSpec& rope : ropes)
      for (const float log : model_values(c_.spec.rope_factors, rope.dims / 2))
        rope.factors.push_back(std::exp(static_cast<double>(log)));
  for (Device* d : to.devices.all()) d->set_ropes(ropes);
  to.layers.resize(c_.spec.layers.size());
  for (size_t i = c_.part.own.begin; i < c_.part.own.end; ++i) {
    to.layers[i] = std::make_unique<GraphLayer>();
    LayerLoader(c_, i, *to.layers[i]).load();
  }
  load_ends();
  to.file_bytes += read_;
}

// Reads a tensor of the whole model by the end of its name: the shortest name, because prediction
// heads may have one of their own.
std::vector<float> LayerSetLoader::model_values(std::string_view ends, size_t count) const {
  const TensorStore& store = c_.checkpoint.store();
  const TensorInfo* found = nullptr;
  for_each_word(ends, [&](std::string_view end, bool) {
    for (const TensorInfo& t : store.tensors())
      if (t.name.ends_with(end) && (found == nullptr || t.name.size() < found->name.size()))
        found = &t;
  });
  if (found == nullptr) fail("{}: no tensor ends in one of {}", c_.checkpoint.folder(), ends);
  std::vector<float> v = read_floats(store, *found);
  if (v.size() != count)
    fail("{} is {}; expected {} values", store.where(*found), describe(*found), count);
  return v;
}

std::unique_ptr<StreamMixer> LayerSetLoader::load_final_mixer() const {
  Device& device = c_.to->devices.ends();
  const auto name = [&](const char* member) {
    return fmt::format("{}.{}", c_.spec.streams.head, member);
  };
  const auto find = [&](const char* member) -> const Module& {
    for (const Module& m : c_.checkpoint.modules())
      if (m.layer < 0 && m.name.ends_with(name(member))) return m;
    fail("{}: {} is missing", c_.checkpoint.folder(), name(member));
  };
  return load_stream_mixer(
      c_,
      {find, [&](const char* member, size_t count) { return model_values(name(member), count); },
       [&](const std::vector<ModuleOutputs>& modules) {
         return device.linear(c_.checkpoint, modules, c_.options);
       }},
      false, device);
}

// Makes the operations {h, a, gates}: a = norm(h), or a norm of all streams in one.
std::vector<RowOp> LayerSetLoader::final_rows(Norm norm) const {
  RowOp last{RowOpKind::kNorm, {1}, {0}};
  last.norm = std::move(norm);
  if (c_.to->streams == 1) return {std::move(last)};
  const auto values = [&](const char* member, size_t count) {
    std::string ends;
    for_each_word(c_.spec.streams.head, [&](std::string_view word, bool) {
      ends.append(ends.empty() ? "" : " ").append(word).append(member);
    });
    return model_values(ends, count);
  };
  const RowView h{0, 0, c_.to->hidden * c_.to->streams}, a{1, 0, c_.to->hidden},
      w{2, 0, c_.to->streams};
  RowOp gates{RowOpKind::kStreamGates, w, h}, in{RowOpKind::kStreamsIn, a, h};
  in.w = w;
  last.x = a;
  if (c_.spec.streams.head == nullptr) {
    auto mean = std::make_shared<StreamGates>();
    mean->streams = c_.to->streams;
    in.streams = std::move(mean);
    return {std::move(in), std::move(last)};
  }
  gates.streams = in.streams = load_stream_gates(c_.spec, c_.to->hidden, false, values);
  return {std::move(gates), std::move(in), std::move(last)};
}

// Loads the operations before and after the layers. Of several ranks the first embeds, and the
// ranks of its stage compute logits.
void LayerSetLoader::load_ends() {
  if (!c_.part.first_stage()) return;
  Linear projection = c_.part.projects || gives_rows(c_.part) ? load_projection() : nullptr;
  const bool cut = !c_.part.columns.empty();
  if (c_.part.embeds) load_embedding(cut ? nullptr : projection.get());
  c_.to->logits_here = c_.part.ranks == nullptr || c_.part.ranks->leader();
  if (cut)
    projection = gather_logits(std::move(projection), *c_.part.ranks, c_.to->output_width);
  else if (c_.part.repeats)
    projection = compare_logits(std::move(projection), *c_.part.ranks, c_.to->output_width);
  c_.to->output = std::move(projection);
}

// Loads the final norm and everything that turns its result into logits; returns the product, or
// null if the rows are wanted.
Linear LayerSetLoader::load_projection() {
  const auto& modules = c_.checkpoint.modules();
  if (c_.spec.streams.rank > 0) {
    c_.to->final_mixer = load_final_mixer();
  } else {
    const auto norm = std::find_if(modules.begin(), modules.end(), [](const Module& m) {
      return m.kind == ModuleKind::kNorm && m.layer < 0 && !m.name.ends_with("embed_norm");
    });
    if (norm == modules.end()) fail("{}: has no final norm", c_.checkpoint.folder());
    const TensorStore& store = c_.checkpoint.store();
    Norm last{c_.spec.norm,
              c_.spec.norm_epsilon,
              read_floats(store, store.require(norm->name + ".weight")),
              {}};
    if (const TensorInfo* bias = store.find(norm->name + ".bias"))
      last.bias = read_floats(store, *bias);
    c_.to->final_norm = c_.to->devices.ends().rows(final_rows(std::move(last)));
  }
  if (!c_.part.projects) return nullptr;
  const Module& output = output_of(c_.checkpoint);
  Device& device = c_.to->devices.ends();
  c_.to->output_width = output.plan.N;
  std::vector<RowOp> tail;
  if (c_.spec.ends.divisor != 1.0f)
    tail.push_back({RowOpKind::kDivide, {}, {}, c_.spec.ends.divisor});
  if (c_.spec.ends.cap != 0.0f) tail.push_back({RowOpKind::kCap, {}, {}, c_.spec.ends.cap});
  if (!tail.empty()) c_.to->logit_tail = device.rows(std::move(tail));
  const Ranks* ranks = c_.part.ranks;
  if (c_.part.repeats && !ranks->leader()) return nullptr;
  const Range rows = c_.part.columns.empty() ? Range{}
                                             : output_range(c_.to->output_width, ranks->members(),
                                                            ranks->member(), output.name);
  return device.linear(c_.checkpoint, {{&output, rows}}, c_.options);
}

// Loads the token table. output: the whole projection to logits, whose weights the table may share;
// null: not in this process.
void LayerSetLoader::load_embedding(const LinearOp* output) {
  Device& device = c_.to->devices.ends();
  const Module& embedding = embedding_of(c_.checkpoint);
  const RowView row{0, 0, c_.to->hidden};
  std::vector<RowOp> embedded;
  if (c_.spec.ends.embedding_norm != nullptr)
    embedded.push_back(norm_op(row, row,
                               {c_.spec.norm,
                                c_.spec.norm_epsilon,
                                model_values(c_.spec.ends.embedding_norm, c_.to->hidden),
                                {}}));
  for (size_t i = 1; i < c_.to->streams; ++i)
    embedded.push_back(copy_op({0, i * c_.to->hidden, c_.to->hidden}, row));
  if (!embedded.empty()) c_.to->embedded = device.rows(std::move(embedded));
  const bool tied = c_.checkpoint.output_module() == &embedding;
  float multiplier = c_.spec.ends.multiplier;
  if (c_.spec.ends.round_multiplier) round_to(c_.to->type, &multiplier, 1);
  c_.to->embedding =
      device.embedding(c_.checkpoint, embedding, multiplier, tied ? output : nullptr);
  if (c_.to->embedding->table_bytes() > 0) c_.to->file_bytes += embedding.bytes;
}

}  // namespace moebius
