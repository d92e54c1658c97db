// SPDX-License-Identifier: Apache-2.0
// Says what a device would make of a module before anything is read: its kernel with the reasons
// against all others, and the bytes that it would take there.
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/oracle.h"
#include "quant/act_request.h"

namespace moebius {

class Device;

// A matrix, or a table of tokens, about which a device is asked.
struct ModuleQuestion {
  const Module* module = nullptr;    // null: a product of rows that the model itself computes
  const MoeBlock* block = nullptr;   // block of which the module is a routed expert; else null
  std::optional<Problem> problem{};  // unset: a table, with which nothing is multiplied
  bool operator==(const ModuleQuestion&) const = default;
};

// Bytes of a shortlist (ModuleUse::shortlist) that is worth having without a request.
inline constexpr uint64_t kLeastShortlist = uint64_t{16} << 20;

struct ModuleUse {
  std::optional<Choice> choice;  // kernel, and a verdict on every other; unset as the problem
  // Class of the product; approximate if a request departs from the declared arithmetic.
  Numerics numerics = Numerics::kExact;
  bool fast = true;     // false: the kernel is no faster than a CPU's
  uint64_t packed = 0;  // bytes of packed weights
  // Bytes of a token table from which rows are read, if they cannot be read from packed weights;
  // and the bytes that the first rank holds in addition if ranks divide a tied one by outputs.
  uint64_t table = 0, table_of_cut = 0;
  // Bytes of a copy by which an output projection finds its greatest outputs; 0: it cannot.
  uint64_t shortlist = 0;
  uint64_t bytes() const { return packed + table; }
};

// Asks a device about modules of a folder, once for all that are alike. Checkpoint and device must
// outlive it.
class ModulePlanner {
 public:
  ModulePlanner(const Checkpoint& checkpoint, const Device& device, const ActRequest& act,
                XType type)
      : checkpoint_(checkpoint), device_(device), act_(act), type_(type) {}
  // Throws Error that names the module if no kernel accepts it. block: of which the module is a
  // routed expert.
  std::shared_ptr<const ModuleUse> use(const Module& module);
  std::shared_ptr<const ModuleUse> use(const Module& module, const MoeBlock* block);
  const Device& device() const { return device_; }

 private:
  struct Known {
    ModuleQuestion question;
    bool departs;  // the product departs from the declared arithmetic
    std::shared_ptr<const ModuleUse> use;
  };
  const Checkpoint& checkpoint_;
  const Device& device_;
  ActRequest act_;
  XType type_;
  std::vector<Known> known_;
};

}  // namespace moebius
