// SPDX-License-Identifier: Apache-2.0
// Format readers: one file per storage format, and one list. plan() checks the shapes of a module's
// tensors against each other and reads only a few small tensors; load() reads the payloads into a
// buffer and returns a QuantMatrix that views them.
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

// Role of a tensor within its module. suffix_of() gives the usual name; exporters have other
// spellings (GPT-OSS: `_blocks` is kWeightPacked, `_scales` is kWeightScale, `_bias` is kBias).
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
std::string_view suffix_of(Role role);  // returns "weight_packed", ...
// All roles, in order.
inline constexpr auto kRoles = [] {
  std::array<Role, static_cast<size_t>(Role::kCount)> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Role>(i);
  return all;
}();

// Refers to a piece of a tensor: a whole tensor, one expert of a fused tensor, or the gate or up
// half of a fused matrix. Rules for filling it in:
//  - index: set it on every role whose tensor has a leading expert dimension. A tensor with a single element is shared and
//    ignores it, and so does weight_shape [2].
//  - rows are logical weight rows (outputs) for every role: a scale, zero point or bias of a fused gate/up matrix carries the same
//    row_begin, row_count, row_step as the weight, whatever its own storage (block scales, packed zero points); a companion that
//    exists per half carries none. One-element scales, g_idx and weight_shape ignore the rows.
//  - transposed: the stored matrix is [K, N] ([groups, N] for scales); one flag per role, dense and byte codes only.
struct TensorRef {
  const TensorInfo* info = nullptr;
  int64_t index = -1;      // expert: index into dimension 0; -1: the tensor has no expert dimension
  uint64_t row_begin = 0;  // logical rows row_begin, row_begin + row_step, ...
  uint64_t row_count = 0;  // number of rows; 0: all rows
  uint64_t row_step = 1;   // distance of rows; 2: gate and up rows alternate
  bool transposed = false;  // true: the matrix is stored as [K, N]
  explicit operator bool() const { return info != nullptr; }
};

struct ModuleTensors {
  std::string name;  // name of the module, for messages
  std::array<TensorRef, static_cast<size_t>(Role::kCount)> by_role;
  const TensorRef& operator[](Role r) const { return by_role[static_cast<size_t>(r)]; }
  TensorRef& operator[](Role r) { return by_role[static_cast<size_t>(r)]; }
};

// All facts about a module that plan() has checked before its payload is read.
struct MatrixPlan {
  ModuleTensors tensors;
  Scheme scheme;
  uint64_t N = 0, K = 0;
  CodeType code = CodeType::kF32;  // code type of the view that load() returns
  Lut lut = Lut::kNone;
  ScaleType scale_type = ScaleType::kNone;
  // Granularity of scales, as in QuantMatrix.
  uint64_t groups = 1, block_n = 1, block_k = 1, n_phase = 0, super_groups = 1;
  bool zero_points = false, offsets = false, act_order = false;
  GlobalScale global_scale;  // second-level scale of NVFP4 weights
  uint64_t code_bytes = 0;   // bytes of codes in the file
  uint64_t scale_bytes = 0;  // bytes of scales, zero points, offsets and indices in the file
  // Static scales that the file stores, read by plan() because they are small.
  ActParams input, output;
  // true: a static scale is stored, and is not 0, which means "uncalibrated"
  bool has_input_scale = false, has_output_scale = false;
  int layout = 0;  // private to the reader: odd-bit layout, zero-point layout, exponent correction
  std::string warning;  // one sentence for the user; empty: none
};

// Memory for load(), reused from module to module; grows to the largest module that was loaded.
class LoadBuffer {
 public:
  uint8_t* allocate(size_t bytes);  // 64-byte aligned, uninitialised; valid until reset()
  void reset();

 private:
  struct Block {
    std::unique_ptr<uint8_t[]> memory;
    size_t size = 0;
  };
  std::vector<Block> blocks_;
  size_t used_ = 0;   // bytes of the last block that are in use
  size_t round_ = 0;  // bytes allocated since reset()
};

struct Planner;  // arguments of one plan() call (proofs.h)
struct Loader;   // arguments of one load() call (loading.h)

struct FormatReader {
  Format format;
  // The parts of plan() and load() that are specific to this format.
  void (*prove)(const Planner&);
  void (*fill)(const Loader&, QuantMatrix& view);

  // Returns the plan of a module. Throws Error "file: tensor is I32[..]; expected ..." if dtypes,
  // ranks or shapes do not fit each other, the scheme, or the expected N and K (0: unknown).
  // `version`: the config's version string of the writer.
  MatrixPlan plan(const ModuleTensors& tensors, const Scheme& scheme, const TensorStore& store,
                  uint64_t expected_N, uint64_t expected_K, std::string_view version) const;
  // Reads the payload into `buffer`, checks scales, zero points and codes, and returns a view of
  // it. Throws Error.
  QuantMatrix load(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer) const;
};

std::span<const FormatReader> format_readers();
const FormatReader& reader_for(Format format);

// Divide large matrices into pieces of rows that are loaded one by one: rows_of() returns the plan
// for rows [begin, end). can_cut_rows() is false for transposed storage, zero points, and pieces of
// fused tensors.
bool can_cut_rows(const MatrixPlan& plan);
MatrixPlan rows_of(const MatrixPlan& plan, uint64_t begin, uint64_t end);

// Returns a view with all facts of the plan, whose codes and tables are null.
QuantMatrix begin_view(const MatrixPlan& plan);
// Returns the values of weight_g_idx; empty if the file holds "-1 = not initialised", which means
// identity.
std::vector<int32_t> read_g_idx(const TensorStore& store, const MatrixPlan& plan);

// Returns the bias as f32; empty if the module has none. Throws Error if it is not finite.
std::vector<float> load_bias(const MatrixPlan& plan, const TensorStore& store);
// Returns `count` integers of an I32 or I64 tensor, from the first-th on.
std::vector<int64_t> read_integers(const TensorStore& store, const TensorInfo& tensor,
                                   uint64_t first, uint64_t count);
// Returns the values of a small dense tensor as f32.
std::vector<float> read_floats(const TensorStore& store, const TensorInfo& tensor);

}  // namespace moebius
