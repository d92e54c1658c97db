// SPDX-License-Identifier: Apache-2.0
// Implements moebius/quantize.hpp, and its C interface.
#include "moebius/quantize.hpp"

#include <chrono>

#include "api/api.h"
#include "api/c_types.h"
#include "quantize/quantize_json.h"
#include "quantize/token_files.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr size_t kErrorTokens = 8192;  // tokens that pass through the layers one by one

// Reports progress to the caller, one call at a time.
class ToldProgress {
 public:
  ToldProgress(const Progress& tell, const char* what) : tell_(tell), what_(what) {}
  void at(uint64_t done, uint64_t total) {
    if (!tell_) return;
    const std::lock_guard lock(mutex_);
    if (stopped_ || !tell_(done, total)) {
      stopped_ = true;
      fail_at({"state", "", "", "", "progress"}, "{} was stopped by the progress function", what_);
    }
  }

 private:
  const Progress& tell_;
  const char* what_;
  std::mutex mutex_;
  bool stopped_ = false;
};

std::vector<int32_t> tokens_of_request(const EvalRequest& r) {
  if (!r.tokens.empty()) return r.tokens;
  if (!r.text.empty()) return moebius::Tokenizer::from_folder(r.folder).encode(r.text, false);
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& d :
       read_token_documents(r.chat.empty() ? r.file : r.chat, r.folder))
    all.insert(all.end(), d.begin(), d.end());
  return all;
}

ModelOptions options_of(const EvalRequest& r, const Checkpoint& checkpoint, ThreadPool& pool,
                        size_t longest) {
  ModelOptions o;
  o.pool = &pool;
  o.type = activation_type(r.dtype, checkpoint.config().dtype);
  o.context = longest;
  return o;
}

}  // namespace

std::string quantize(const std::string& options, const Progress& progress) {
  QuantizeRequest request = quantize_request(options);
  const std::shared_ptr<Runtime> runtime = Runtime::shared(request.threads);
  QuantizeJob job(std::move(request.options), runtime->threads());
  double seconds = 0;
  if (!request.dry_run) {
    const auto start = std::chrono::steady_clock::now();
    ToldProgress told(progress, "quantize");
    job.run(runtime->pool(), [&](const QuantizeProgress& p) { told.at(p.done, p.total); });
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  return quantize_answer(job, seconds, !request.dry_run).dump();
}

std::string evaluate(const std::string& options, const Progress& progress) {
  const EvalRequest r = eval_request(options);
  const std::vector<int32_t> tokens = tokens_of_request(r);
  if (tokens.size() < 2)
    fail_argument("tokens", "evaluate: {} tokens; expected at least 2", tokens.size());
  const Windows windows(tokens, r.context, r.windows);
  const std::shared_ptr<Runtime> runtime = Runtime::shared(r.threads);
  ToldProgress told(progress, "evaluate");
  const Checkpoint folder = Checkpoint::open(r.folder), base = Checkpoint::open(r.base);
  EvalFigures figures;
  {
    RoutingTap ours, theirs;
    const auto load = [&](const Checkpoint& c, RoutingTap& tap) {
      ModelOptions o = options_of(r, c, runtime->pool(), windows.length(0));
      o.tap = &tap;
      return DecoderModel::load(c, o);
    };
    const std::unique_ptr<DecoderModel> model = load(folder, ours), other = load(base, theirs);
    check_tokens(std::span(tokens).first(windows.inputs() + 1), model->vocab());
    EvalSettings settings;
    settings.top = r.top;
    settings.pool = &runtime->pool();
    uint64_t done = 0;
    settings.advance = [&](size_t n) { told.at(done += n, windows.inputs()); };
    figures = moebius::evaluate(windows, {model.get(), &ours}, {other.get(), &theirs}, settings);
  }
  LayerErrors errors;
  if (r.layers) {
    TokenWindows some;
    for (size_t w = 0; w < windows.count() && tokens_of(some) < kErrorTokens; ++w) {
      const std::span<const int32_t> t = windows.tokens(w, 0, windows.length(w));
      some.emplace_back(t.begin(), t.end());
    }
    errors =
        layer_errors(base, folder, some, options_of(r, folder, runtime->pool(), windows.length(0)),
                     [&](size_t, size_t) { told.at(windows.inputs(), windows.inputs()); });
  }
  return eval_answer(figures, errors, r.top).dump();
}

}  // namespace moebius

using namespace moebius;  // NOLINT: no header, though bundles include it

char* moebius_quantize_json(const char* options, moebius_progress progress, void* user) {
  return guarded<char*>(nullptr, [&] {
    require(options, "options");
    return new_string(quantize(options, progress_of(progress, user)));
  });
}
char* moebius_evaluate_json(const char* options, moebius_progress progress, void* user) {
  return guarded<char*>(nullptr, [&] {
    require(options, "options");
    return new_string(evaluate(options, progress_of(progress, user)));
  });
}
