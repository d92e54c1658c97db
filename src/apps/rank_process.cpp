// SPDX-License-Identifier: Apache-2.0
#include "apps/rank_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "apps/cli/commit.h"
#include "apps/cli/folder.h"
#include "apps/cli/manners.h"
#include "apps/cli/places.h"
#include "base/error.h"
#include "device/gpu.h"
#include "model/ranks/handshake.h"
#include "runtime/binding.h"
#include "runtime/comm_plugin.h"
#include "runtime/host_name.h"
#include "runtime/launcher.h"
#include "runtime/process_life.h"
#include "runtime/program_folder.h"
#include "runtime/runtime.h"

namespace moebius {
namespace {

RankProcess* the_process = nullptr;

template <class T>
T value_of(const Command& command, const char* name) {
  return *std::get<T*>(command.find(name)->target);
}

// Returns a placement without device numbers: ranks that spread experts need the same kind of
// device, whatever its number.
std::string place_text(DevicePlacement placement) {
  const auto plain = [](std::string& name) {
    if (is_gpu_name(name)) name = "cuda";
  };
  plain(placement.ends);
  for (DevicePlacement::Rule& r : placement.rules) plain(r.attention), plain(r.experts);
  return placement.describe();
}

std::vector<std::pair<std::string, std::string>> options_of(const Wish& o,
                                                            const std::string& check) {
  const RankSplit& split = o.split;
  const auto number = [](size_t n) { return std::to_string(n); };
  constexpr const char* kKvNames[] = {"f32", "f16", "bf16", "int8", "fp8"};
  return {
      {"--pp", number(split.pp)},
      {"--tp", number(split.tp)},
      {"--ep", number(split.ep)},
      {"--attention", split.repeat_attention ? "repeat" : "cut"},
      {"--spare", number(split.spare)},
      {"--dtype", kKvNames[static_cast<size_t>(kv_type_of(o.type))]},
      {"--kv-dtype", o.kv_type ? kKvNames[static_cast<size_t>(*o.kv_type)] : "auto"},
      {"--policy", std::string(name_of(o.policy.accept))},
      {"--kernel", o.policy.kernel.empty() ? "auto" : o.policy.kernel},
      {"--activations", o.act.int8_rows ? "int8" : "declared"},
      {"--head-dtype", o.act.int8_head ? "int8" : "declared"},
      {"--int8-activations", o.act.mode == Int8Mode::kDeclared ? "declared"
                             : o.act.mode == Int8Mode::kVllm   ? "vllm"
                                                               : "ct"},
      {"--place", split.ep > 1 ? place_text(o.placement) : "any"},
      {"GPU", split.ep > 1 && !o.placement.gpu().empty() ? printable(target_of(*o.gpu.module).name)
                                                         : "any"},
      {"--check", check}};
}

// Returns where this host has the folder, by the entries HOST=DIR.
std::string mapped_folder(const std::string& folder, const std::vector<std::string>& map,
                          const std::string& host) {
  std::string found = folder;
  for (const std::string& entry : map) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size())
      fail("--folder-map {}; expected HOST=DIR", printable(entry));
    if (entry.compare(0, equals, host) == 0) found = entry.substr(equals + 1);
  }
  return found;
}

// Writes a line of this rank to stderr.
void say_line(const std::string& text) {
  put_on_stderr(fmt::format("moebius: {}{}\n", rank_label(), text));
}

}  // namespace

std::string rank_label() {
  static const std::string label = [] {
    try {
      const Launcher launcher = find_launcher();
      return launcher.rank == 0 ? "" : fmt::format("[rank {} {}] ", launcher.rank, host_name());
    } catch (const Error&) {
      return std::string();
    }
  }();
  return label;
}

RankProcess* RankProcess::current() { return the_process; }

RankProcess::RankProcess(std::unique_ptr<Comm> comm, const Command& command, Witness& witness)
    : witness_(witness),
      comm_(std::move(comm)),
      timeout_(value_of<double>(command, "--rank-timeout")),
      check_(value_of<std::string>(command, "--check")),
      quiet_(manners().quiet) {
  comm_->set_timeout(timeout_);
  comm_->set_whereabouts(witness.rank());
  if (comm_->rank() != 0 && !manners().verbose) manners().quiet = true;
}

void RankProcess::leaving() {
  if (witness_.rank() != nullptr) witness_.rank()->state = Whereabouts::kSaid;
}

size_t RankProcess::ranks() const { return static_cast<size_t>(comm_->size()); }

size_t RankProcess::ranks_of_host() const {
  size_t count = 0;
  for (int r = 0; r < comm_->size(); ++r) count += comm_->host(r) == comm_->host(comm_->rank());
  return count;
}

RankProcess::Order RankProcess::order(Order mine) {
  const Patience patience(*comm_, comm_->rank() == 0 ? timeout_ : kLoadingSeconds);
  comm_->wait(comm_->start_broadcast(&mine, sizeof mine, 0), "orders of rank 0");
  return mine;
}

ModelPlan RankProcess::agree(const Checkpoint* checkpoint, const ModelOptions& options,
                             std::string trouble) {
  const Patience patience(*comm_, kLoadingSeconds);
  Handshake mine = handshake_of_process(MOEBIUS_VERSION, kBuildCommit);
  Cluster cluster{std::vector<Machine>(ranks())};
  ModelPlan plan;
  if (checkpoint != nullptr && trouble.empty()) try {
      mine.options = options_of(options, check_);
      mine.files = mark_folder(*checkpoint, folder_check_from(check_));
      mine.kernels = mark_kernels(*checkpoint, options);
      cluster.ranks[static_cast<size_t>(comm_->rank())].gpu = this_machine(options.gpu).gpu;
      plan = plan_model(*checkpoint, options, cluster);
      // About the rank's own GPU; host memory is judged below, when all ranks are known.
      trouble = plan.refusal;
    } catch (const Error& e) {
      trouble = e.what();
    }
  mine.trouble = std::move(trouble);
  const std::vector<Handshake> all = exchange_handshakes(*comm_, mine);
  const auto host = [&](size_t r) { return comm_->host(static_cast<int>(r)); };
  if (const std::string refusal = refusal_of(all, host); !refusal.empty())
    throw RanksRefused(refusal);
  for (size_t r = 0; r < all.size(); ++r) {
    cluster.ranks[r].host = host(r);
    cluster.ranks[r].memory = all[r].memory;
  }
  judge(plan, cluster);
  if (!plan.refusal.empty()) throw RanksRefused(plan.refusal);
  return plan;
}

std::unique_ptr<DecoderModel> RankProcess::load_part(const Checkpoint& checkpoint,
                                                     const ModelPlan& plan, ModelOptions options) {
  ranks_ = std::make_unique<Ranks>(*comm_, plan.wish.split);
  options.ranks = ranks_.get();
  return load_rank(checkpoint, plan, options, [&](const std::string& line) {
    if (!quiet_) put_on_stderr(fmt::format("{}\n", line));
  });
}

std::unique_ptr<DecoderModel> RankProcess::load(const Checkpoint& checkpoint,
                                                const ModelOptions& options) {
  const RankSplit& split = options.split;
  (void)order({Order::kLoad, options.context, split.pp, split.tp, split.ep, split.repeat_attention,
               split.spare});
  const ModelPlan plan = agree(&checkpoint, options, "");
  for (const std::string& words : plan.words) note("{}", words);
  return load_part(checkpoint, plan, options);
}

RankFacts RankProcess::measure(const Checkpoint& checkpoint, const ModelOptions& options) {
  (void)order({Order::kMeasure});
  return measure_ranks(*comm_, &checkpoint, options);
}

RankProcess::Opened RankProcess::open(const ModelRunOptions& options,
                                      const RankSplit& split) const {
  Opened o;
  try {
    o.checkpoint = std::make_unique<Checkpoint>(open_checkpoint(
        mapped_folder(options.folder, options.ranks.folder_map, comm_->host(comm_->rank()))));
    o.runtime = runtime_of(split, thread_count(options.run));
    o.options = model_options_of(options, *o.checkpoint);
    o.options.pool = &o.runtime->pool();
  } catch (const Error& e) {
    o.trouble = e.what();
  }
  return o;
}

void RankProcess::measure_too(const ModelRunOptions& options) {
  const Opened o = open(options, {});
  (void)measure_ranks(*comm_, o.trouble.empty() ? o.checkpoint.get() : nullptr, o.options);
}

void RankProcess::load_and_follow(const ModelRunOptions& options, const Order& order) {
  Opened o = open(options, order.split());
  o.options.split = order.split();
  o.options.context = order.context;
  const ModelPlan plan = agree(o.checkpoint.get(), o.options, o.trouble);
  load_part(*o.checkpoint, plan, o.options)->follow();
}

int follow_rank_0(const ModelRunOptions& options) {
  RankProcess& process = *RankProcess::current();
  for (;;) {
    const RankProcess::Order order = process.order({});
    if (order.kind == RankProcess::Order::kEnd) return kExitDone;
    if (order.kind == RankProcess::Order::kMeasure)
      process.measure_too(options);
    else
      process.load_and_follow(options, order);
  }
}

int run_as_rank(const Command& command) {
  const Launcher launcher = find_launcher();
  if (launcher.size == 1) return command.action(command);
  end_with_parent();
  Witness witness(launcher, host_name(), value_of<double>(command, "--rank-timeout"));
  RankProcess process(open_comm(launcher, plugin_places(program_folder(), kBuildPaths)), command,
                      witness);
  Comm& comm = *process.comm_;
  const bool leads = comm.rank() == 0;
  try {
    const RankBinding binding =
        bind_rank(comm, value_of<bool>(command, "--keep-binding"), launcher.name == "srun");
    if (binding.changed && !process.quiet_) say_line(binding.note);
    comm.set_spin(!binding.crowded);
    if (value_of<bool>(command, "--common-cpu"))
      narrow_host_cpu(
          common_cpu(exchange_handshakes(comm, handshake_of_process(MOEBIUS_VERSION, ""))));
    the_process = &process;
    const int code = leads ? command.action(command) : command.follow();
    if (leads) {
      std::cout.flush();
      (void)process.order({});
    }
    the_process = nullptr;
    return code;
  } catch (const RanksRefused& e) {
    the_process = nullptr;
    if (leads) say_line(e.what());
    return kExitFailed;
  } catch (const std::exception& e) {
    std::cout.flush();
    if (leads) put_on_stderr(fmt::format("moebius: {}\n", e.what()));
    comm.abort(leads ? "" : e.what());
  }
}

}  // namespace moebius
