// SPDX-License-Identifier: Apache-2.0
// Format readers: one file each, one list. A reader proves the shapes of a module's tensors against
// each other (plan, nothing read but a few small tensors), then reads payloads into a buffer and
// gives a QuantMatrix that views them (load).
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/tensor_store.h"
#include "quant/activation.h"
#include "quant/quant_matrix.h"
#include "quant/scheme.h"

namespace moebius {

// The role of a tensor inside its module: the suffixes of the format, and the native spellings of
// other exporters (GPT-OSS: `_blocks` is kWeightPacked, `_scales` is kWeightScale, `_bias` is
// kBias).
enum class Role : uint8_t {
  kWeight,
  kWeightPacked,
  kWeightScale,
  kWeightZeroPoint,
  kWeightOffset,
  kWeightGIdx,
  kWeightShape,
  kWeightGlobalScale,
  kInputGlobalScale,
  kInputScale,
  kInputZeroPoint,
  kOutputScale,
  kOutputZeroPoint,
  kBias,
  kCount,
};
std::string_view suffix_of(Role role);  // "weight_packed", ...

// A piece of a tensor: a whole tensor, one expert of a fused tensor, the gate or up half of a fused
// matrix. Rules for whoever fills it:
//  - index: set it on every role whose tensor has a leading expert dimension. A tensor with a single element is shared and
//    ignores it, and so does weight_shape [2].
//  - rows are logical weight rows (outputs) for every role: a scale, zero point or bias of a fused gate/up matrix carries the same
//    row_begin, row_count, row_step as the weight, whatever its own storage (block scales, packed zero points); a companion that
//    exists per half carries none. One-element scales, g_idx and weight_shape ignore the rows.
//  - transposed: the stored matrix is [K, N] ([groups, N] for scales); one flag per role, dense and byte codes only.
struct TensorRef {
  const TensorInfo* info = nullptr;
  int64_t index = -1;       // slice of dimension 0 (expert) or -1
  uint64_t row_begin = 0;   // logical rows row_begin, row_begin + row_step, ...
  uint64_t row_count = 0;   // 0: all
  uint64_t row_step = 1;    // 2: interleaved gate/up
  bool transposed = false;  // stored [K, N]
  explicit operator bool() const { return info != nullptr; }
};

struct ModuleTensors {
  std::string name;  // module, for messages
  std::array<TensorRef, static_cast<size_t>(Role::kCount)> by_role;
  const TensorRef& operator[](Role r) const { return by_role[static_cast<size_t>(r)]; }
  TensorRef& operator[](Role r) { return by_role[static_cast<size_t>(r)]; }
};

// Everything proven about a module before its payload is read.
struct MatrixPlan {
  ModuleTensors tensors;
  Scheme scheme;
  uint64_t N = 0, K = 0;
  CodeType code = CodeType::kF32;  // of the view that load() gives
  ScaleType scale_type = ScaleType::kNone;
  uint64_t groups = 1, block_n = 1, block_k = 1, n_phase = 0;  // as in QuantMatrix
  bool zero_points = false, offsets = false, act_order = false;
  GlobalScale global_scale;  // NVFP4 weights
  uint64_t code_bytes = 0;   // in the file
  uint64_t scale_bytes = 0;  // in the file: scales, zero points, offsets, indices
  ActParams input, output;   // stored static values (read at plan time: they are small)
  bool has_input_scale = false,
       has_output_scale = false;  // a static scale is stored and not the "uncalibrated" 0
  int layout = 0;  // reader's own note (odd-bit layout, zero-point layout, exponent correction)
  std::string warning;  // one sentence for the user, empty: nothing odd
};

// Memory that one load needs; reused from module to module, never larger than the largest module
// asked for.
class LoadBuffer {
 public:
  uint8_t* allocate(size_t bytes);  // 64-byte aligned, not cleared; valid until reset
  void reset();

 private:
  struct Block {
    std::unique_ptr<uint8_t[]> memory;
    size_t size = 0;
  };
  std::vector<Block> blocks_;
  size_t used_ = 0;   // of the last block
  size_t round_ = 0;  // bytes handed out since reset
};

struct Planner;  // one plan() call (proofs.h)
struct Loader;   // one load() call (loading.h)

struct FormatReader {
  Format format;
  // What plan() proves and load() reads of this format.
  void (*prove)(const Planner&);
  void (*fill)(const Loader&, QuantMatrix& view);

  // Throws Error "file: tensor is I32[..]; expected ..." when dtypes, ranks or shapes do not fit
  // each other, the scheme or expected N, K (0: unknown). version: writer's version string of the
  // config.
  MatrixPlan plan(const ModuleTensors& tensors, const Scheme& scheme, const TensorStore& store,
                  uint64_t expected_N, uint64_t expected_K, std::string_view version) const;
  // Reads, checks scales / zero points / code ranges, and returns a view into `buffer`.
  QuantMatrix load(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer) const;
};

std::span<const FormatReader> format_readers();
const FormatReader& reader_for(Format format);

// A large matrix can be loaded in pieces of rows: load() of the plan of rows [begin, end) views
// just these. Not every plan can be cut (transposed storage, zero points, a piece of a fused
// tensor): can_cut_rows says.
bool can_cut_rows(const MatrixPlan& plan);
MatrixPlan rows_of(const MatrixPlan& plan, uint64_t begin, uint64_t end);

// A view with everything that the plan already knows; codes and tables still null.
QuantMatrix begin_view(const MatrixPlan& plan);
// The values of weight_g_idx; empty for "-1 = not initialised", which means identity.
std::vector<int32_t> read_g_idx(const TensorStore& store, const MatrixPlan& plan);

// Bias as f32 (checked finite), empty when the module has none.
std::vector<float> load_bias(const MatrixPlan& plan, const TensorStore& store);
// Any small dense tensor as f32 values.
std::vector<float> read_floats(const TensorStore& store, const TensorInfo& tensor);

}  // namespace moebius
