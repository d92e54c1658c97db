// SPDX-License-Identifier: Apache-2.0
// Generation, step by step: any number of sequences, each with its own length, sampler and limits,
// share every step of the model. A sequence's tokens do not depend on what else runs. Nothing here
// knows text.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "nn/sampler.h"

namespace moebius {

struct EngineOptions {
  size_t context =
      0;  // most tokens of one sequence, prompt included; 0: what the model's config allows
  size_t prefill_chunk = 512;  // prompt tokens per step
};

// kContext: no room for another token, in the context or in the memory for keys and values.
enum class Finish : uint8_t { kNo, kStopToken, kLength, kContext, kCancelled };

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  size_t max_new = SIZE_MAX;         // 0: none at all; also bounded by the context
  std::vector<int32_t> stop_tokens;  // end the sequence; reported, not to be shown
  bool ignore_stop = false;
};

// What a step brought for one sequence: a token, the end, or both.
struct StepResult {
  uint64_t id = 0;
  std::optional<TokenChoice> choice;  // with the last token, finish is set too
  Finish finish = Finish::kNo;
};

class Engine {
 public:
  // `vocab`: tokens that may be produced (0: all of the model's).
  Engine(DecoderModel& model, const EngineOptions& options, size_t context_of_config,
         size_t vocab = 0);

  // Throws Error in words when the prompt is empty, does not fit the context or the memory, or
  // holds an unknown token.
  uint64_t add(Request request);
  void cancel(uint64_t id);  // its end is reported by the next step
  bool idle() const { return sequences_.empty(); }
  size_t context() const { return context_; }
  size_t prompt_left() const;  // tokens of prompts that no step has run yet

  // One pass through the model: a token for every running sequence, and a piece of the waiting
  // prompts.
  std::vector<StepResult> step();

 private:
  struct Sequence {
    uint64_t id;
    Request request;
    SequenceState state;
    Sampler sampler;
    Finish limit = Finish::kLength;  // what reaching max_new means
    size_t prompt_done = 0, produced = 0;
    int32_t next = 0;
    bool cancelled = false;
  };
  size_t tokens_in_memory() const;  // that keys and values still have room for
  DecoderModel& model_;
  size_t context_, chunk_, vocab_;
  uint64_t next_id_ = 1;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<float> logits_;
};

}  // namespace moebius
