// SPDX-License-Identifier: Apache-2.0
#include "model/run/packed_weights.h"

#include "base/error.h"
#include "base/human.h"
#include "model/plan/model_plan.h"
#include "model/ranks.h"
#include "nn/ops.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

// Describes everything beside checkpoint and CPU on which packed weights depend.
std::string packed_for(const ModelOptions& o) {
  std::string text = fmt::format("policy {}", name_of(o.policy.accept));
  if (!o.policy.kernel.empty())
    text +=
        fmt::format(", kernel {}{}", o.policy.kernel, o.policy.where_it_can ? " where it can" : "");
  text += fmt::format(", rows of {}", name_of(dtype_of(o.type)));
  if (o.act.int8_rows) text += ", int8 rows on request";
  if (o.act.int8_head) text += ", int8 output projection on request";
  if (o.act.mode != Int8Mode::kDeclared)
    text += o.act.mode == Int8Mode::kVllm ? ", int8 as vllm" : ", int8 as compressed-tensors";
  if (const std::string placement = o.placement.describe(); placement != "cpu")
    text += ", on " + placement;  // parts on other devices are not in the file
  if (o.predictor) text += ", with multi-token prediction";
  if (o.ranks != nullptr)
    text += fmt::format(", rank {} of {}", o.ranks->rank(), describe(o.ranks->split()));
  return text;
}

}  // namespace

PackRequest pack_request(const Checkpoint& checkpoint, const ModelOptions& options) {
  PackRequest request;
  request.folder = options.pack_dir;
  request.made_for = packed_for(options);
  // An estimate: a rank's share of all.
  request.bytes = sum_of(plan_modules_on_cpu(checkpoint, options)) /
                  (options.ranks != nullptr ? options.ranks->split().ranks() : 1);
  request.memory = available_memory_bytes();
  request.pool = options.pool;
  const auto tell = [](const std::function<void(const std::string&)>& to) {
    return to ? to : [](const std::string&) {};
  };
  request.note = tell(options.note);
  request.warn = tell(options.warn);
  return request;
}

std::shared_ptr<PackedStore> open_packed(const Checkpoint& checkpoint,
                                         const ModelOptions& options) {
  if (options.pack_dir.empty()) return nullptr;
  if (options.placement.one_device() && !options.placement.gpu().empty()) {
    if (options.warn) options.warn("--pack-dir keeps weights of the CPU, and none are there");
    return nullptr;
  }
  PackRequest request = pack_request(checkpoint, options);
  const uint64_t bytes = request.bytes, memory = request.memory;
  std::shared_ptr<PackedStore> store = PackedStore::open(checkpoint, std::move(request));
  const bool streamed = options.expert_bytes.value_or(0) > 0;
  if (store == nullptr && !streamed && memory != 0 && bytes > memory)
    fail("{}: needs {} of memory for weights that are not in --pack-dir, and {} are free",
         checkpoint.folder(), human_bytes(bytes), human_bytes(memory));
  return store;
}

}  // namespace moebius
