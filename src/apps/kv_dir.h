// SPDX-License-Identifier: Apache-2.0
// Implements --kv-dir: the prompt cache on disk of commands that generate.
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
  std::string folder;  // folder of the prompt cache; "": none
  double gib = 10;
};
void add_kv_dir_options(Command& command, KvDirOptions& options);

// Opens the folder of the prompt cache, before weights are loaded; returns null if the option is
// not given. Throws Error. `say` receives later failures, from any thread.
std::unique_ptr<KvDisk> open_kv_dir(const KvDirOptions& options, const ModelRunOptions& model,
                                    std::function<void(const std::string& words)> say);
// Attaches the cache to an engine's options. Writes to stderr if it would be of no use.
void use_kv_dir(KvDisk* disk, const ModelRunOptions& model, const OpenModel& open,
                EngineOptions& options);
// Writes the content of the engine's cache to disk.
void keep_kv_dir(const KvDisk* disk, Engine& engine);

// Returns a text with everything that decides the bytes of a block of keys and values: the folder's
// headers, sizes and times, its configs, the program, CPU and options.
std::string kv_fingerprint(const ModelRunOptions& model, const OpenModel& open);

}  // namespace moebius
