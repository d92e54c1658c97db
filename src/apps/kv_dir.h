// SPDX-License-Identifier: Apache-2.0
// --kv-dir: the prompt cache on disk of commands that generate.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "apps/cli/command.h"
#include "apps/model_commands.h"
#include "engine/engine.h"
#include "engine/kv_disk.h"

namespace moebius {

struct KvDirOptions {
  std::string folder;  // "": none
  double gib = 10;
};
void add_kv_dir_options(Command& command, KvDirOptions& options);

// The folder, before weights are loaded; null: none was asked for. Throws Error in words.
// `say` is told, from any thread, what goes wrong later.
std::unique_ptr<KvDisk> open_kv_dir(const KvDirOptions& options, const ModelRunOptions& model,
                                    std::function<void(const std::string& words)> say);
// Gives it to an engine of the model. Says in words where it would be of no use.
void use_kv_dir(KvDisk* disk, const ModelRunOptions& model, const OpenModel& open,
                EngineOptions& options);
// Writes what the engine's cache holds.
void keep_kv_dir(const KvDisk* disk, Engine& engine);

// All that decides which bytes a block of keys and values has: the folder's headers, sizes and times,
// its configs, the program, CPU and options.
std::string kv_fingerprint(const ModelRunOptions& model, const OpenModel& open);

}  // namespace moebius
