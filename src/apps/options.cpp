// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "runtime/thread_pool.h"

namespace moebius {

size_t thread_count(const RunOptions& options) {
  if (options.threads < 0 || options.threads > 1024)
    fail("--threads is {}; expected 1 to 1024, or 0 for all cores", options.threads);
  return options.threads == 0 ? default_thread_count() : static_cast<size_t>(options.threads);
}

Policy policy_of(const RunOptions& options) {
  Policy policy;
  policy.accept = accept_from_name(options.policy);
  policy.kernel = normalize_kernel_name(options.kernel);
  if (policy.kernel.empty()) {
    policy.kernel = kernel_from_environment();
    if (!policy.kernel.empty())
      fmt::print(stderr, "moebius: MOEBIUS_KERNEL asks for kernel {}\n", policy.kernel);
  }
  if (const char* cpu = std::getenv("MOEBIUS_CPU"); cpu != nullptr && *cpu != '\0')
    fmt::print(stderr, "moebius: MOEBIUS_CPU narrows the CPU to {}\n", describe(host_cpu()));
  return policy;
}

Int8Mode int8_mode_of(const RunOptions& options) {
  if (options.int8_activations == "declared") return Int8Mode::kDeclared;
  if (options.int8_activations == "ct") return Int8Mode::kCompressedTensors;
  if (options.int8_activations == "vllm") return Int8Mode::kVllm;
  fail("--int8-activations is '{}'; expected declared, ct or vllm",
       printable(options.int8_activations));
}

std::string folder_or_bundled(const std::string& folder) {
  if (!folder.empty()) return folder;
  for (const char* root : {MOEBIUS_SOURCE_DIR, MOEBIUS_INSTALL_DATADIR}) {
    const std::string path = std::string(root) + "/models/moebius-tiny-w4a8";
    struct stat info {};
    if (stat((path + "/config.json").c_str(), &info) == 0) return path;
  }
  fail("no folder given, and the bundled model is neither in {}/models nor in {}/models",
       MOEBIUS_SOURCE_DIR, MOEBIUS_INSTALL_DATADIR);
}

}  // namespace moebius
