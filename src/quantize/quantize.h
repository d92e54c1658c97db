// SPDX-License-Identifier: Apache-2.0
// A folder of plain weights becomes a compressed-tensors folder, tensor by tensor: never more in
// memory than one unit of work per thread. The result has its name only when it is whole; until then
// it is TARGET.partial, which no loader takes (config.json is written last), and which --resume goes
// on with.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quantize/output_plan.h"

namespace moebius {

class Calibration;
struct Range;
class ThreadPool;

struct QuantizeForecast {
  uint64_t bytes_in = 0, bytes_out = 0;
  double bits_per_weight = 0;  // of what is quantized, scales included
  uint64_t memory = 0, memory_free = 0;
  uint64_t disk_needed = 0, disk_free = 0;
  uint64_t scratch = 0;                // bytes of rows in files; 0: rows are in memory
  size_t tokens = 0, expert_rows = 0;  // of the calibration; rows an expert sees on the mean
  size_t threads = 1;
  double seconds = 0;  // from a short probe; 0: not probed
};

struct QuantizeProgress {
  uint64_t done = 0, total = 0;  // bytes of the source
  int layer = -1;                // of the unit that was just finished
  std::string_view note = {};    // "calibrating" and the like
};
using OnQuantizeProgress = std::function<void(const QuantizeProgress&)>;  // from any thread

// How a module was made, beyond rounding.
struct ModuleReport {
  std::string name;
  QuantizeMethod method = QuantizeMethod::kRtn;
  size_t rows = 0;     // that it saw of the calibration text
  double loss = 0;     // relative, weighted by its inputs where they are known
  std::string reason;  // why not the method that was asked for; "": it is
};
struct UnitResult {
  std::vector<std::vector<uint8_t>> tensors;  // in the order of the unit's outputs
  std::vector<ModuleReport> reports;
};

class QuantizeJob {
 public:
  // Opens the source and plans; throws Error for all that can be refused before the work.
  QuantizeJob(QuantizeOptions options, size_t threads);
  const Checkpoint& source() const { return source_; }
  const Selection& selection() const { return selection_; }
  const OutputPlan& plan() const { return plan_; }
  const QuantizeOptions& options() const { return options_; }
  const QuantizeForecast& forecast() const { return forecast_; }
  const std::vector<ModuleReport>& reports() const;  // of a run that is done, by name
  void probe();                                      // fills forecast().seconds: 0.02 s
  // Throws Error; what was finished stays for --resume.
  void run(ThreadPool& pool, const OnQuantizeProgress& progress);

 private:
  void check_target() const;
  void find_others();
  void check_method() const;
  void check_room();
  void begin();
  void plan_calibration();
  void make_calibration(ThreadPool& pool, const OnQuantizeProgress& progress);
  Checkpoint made_layers(Range layers) const;  // as the shards have them
  void write_shard(size_t number, ThreadPool& pool, const OnQuantizeProgress& progress);
  void keep_journal();
  void finish();
  std::string config_text() const;
  Json index_json() const;

  QuantizeOptions options_;
  Checkpoint source_;
  Selection selection_;
  OutputPlan plan_;
  QuantizeForecast forecast_;
  std::string partial_;                                      // the folder while it is made
  std::vector<std::pair<std::string, std::string>> others_;  // files to copy, and their names there
  struct State;
  std::shared_ptr<State> state_;
};

// calibration: may be null.
UnitResult do_unit(const WorkUnit& unit, const TensorStore& store, const QuantizeOptions& options,
                   const Calibration* calibration, LoadBuffer& buffer);

}  // namespace moebius
