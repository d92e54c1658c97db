// SPDX-License-Identifier: Apache-2.0
// Opens plugins of MPIs. A plugin stays open until the process ends: MPI cannot be initialized
// again after it was closed.
#include "runtime/comm_plugin.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "runtime/comm_table.h"
#include "runtime/host_name.h"
#include "runtime/transport.h"

namespace moebius {
namespace {

constexpr int kStatusOfAbort = 3;
constexpr size_t kHostBytes = 64;
// Launchers forward no more output after an abort.
constexpr useconds_t kForwardMicroseconds = 200'000;

std::string words_of_code(const MoebiusCommTable& table, int code) {
  std::array<char, 512> text{};
  table.describe(code, text.data(), text.size());
  return printable(text.data());
}

// Holds the plugin's functions. `broken` is set when a message was dropped before it finished: then
// MPI must not be finalized.
struct PluginState {
  const MoebiusCommTable* table;
  bool broken = false;
};

class PluginTransfer : public Transfer {
 public:
  PluginTransfer(PluginState& state, int peer, size_t bytes, bool receives)
      : state_(state), peer_(peer), bytes_(bytes), receives_(receives) {}
  ~PluginTransfer() override {
    if (request_ != nullptr) state_.broken = true;
  }
  void** request() { return &request_; }
  void check(int code) {
    if (code == 0) return;
    request_ = nullptr;
    state_.broken = true;
    throw CommError(fmt::format("{} bytes {} rank {}: {}", bytes_, receives_ ? "from" : "to", peer_,
                                words_of_code(*state_.table, code)),
                    peer_);
  }
  bool test() override {
    if (request_ == nullptr) return true;
    int done = 0;
    size_t received = 0;
    check(state_.table->test(request_, &done, &received));
    if (done == 0) return false;
    request_ = nullptr;
    if (receives_ && received != bytes_)
      throw CommError(
          fmt::format("rank {} sent {} bytes where {} were expected", peer_, received, bytes_),
          peer_);
    return true;
  }

 private:
  PluginState& state_;
  int peer_;
  size_t bytes_;
  bool receives_;
  void* request_ = nullptr;
};

class PluginTransport : public Transport {
 public:
  explicit PluginTransport(const MoebiusCommTable& table) : state_{&table} {
    if (const int code = table.start(&rank_, &size_); code != 0)
      fail("{} did not start: {}", table.name, words_of_code(table, code));
  }
  ~PluginTransport() override {
    if (!state_.broken) state_.table->stop();
  }
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& host(int rank) const override {
    static const std::string kUnknown = "unknown";
    return hosts_.empty() ? kUnknown : hosts_[static_cast<size_t>(rank)];
  }
  size_t largest_message() const noexcept override { return size_t{1} << 30; }
  std::unique_ptr<Transfer> send(int to, int tag, const void* p, size_t bytes) override {
    auto t = std::make_unique<PluginTransfer>(state_, to, bytes, false);
    t->check(state_.table->send(to, tag, p, bytes, t->request()));
    return t;
  }
  std::unique_ptr<Transfer> receive(int from, int tag, void* p, size_t bytes) override {
    auto t = std::make_unique<PluginTransfer>(state_, from, bytes, true);
    t->check(state_.table->receive(from, tag, p, bytes, t->request()));
    return t;
  }
  void poll() override { state_.table->poll(); }
  void abort(const std::string& text) noexcept override {
    if (!text.empty())
      std::fprintf(stderr, "moebius: [rank %d %s] %s\n", rank_, host(rank_).c_str(), text.c_str());
    std::fflush(stderr);
    ::usleep(kForwardMicroseconds);
    state_.broken = true;
    state_.table->abort(kStatusOfAbort);
    _exit(kStatusOfAbort);  // the plugin's abort may return
  }

 private:
  PluginState state_;
  int rank_ = 0, size_ = 1;
  std::vector<std::string> hosts_;
};

std::string mpi_name(const std::string& plugin) {
  return plugin == "openmpi" ? "Open MPI" : plugin == "mpich" ? "MPICH" : plugin;
}

// Returns the first plugin file that exists, or "".
std::string file_of(const std::string& plugin, const std::vector<std::string>& folders) {
  if (plugin.find('/') != std::string::npos)
    return ::access(plugin.c_str(), R_OK) == 0 ? plugin : "";
  for (const std::string& folder : folders) {
    const std::string file = fmt::format("{}/libmoebius_comm_{}.so", folder, plugin);
    if (::access(file.c_str(), R_OK) == 0) return file;
  }
  return "";
}

const MoebiusCommTable& open_table(const Launcher& launcher,
                                   const std::vector<std::string>& folders) {
  const std::string& plugin = launcher.plugin;
  const std::string file = file_of(plugin, folders);
  if (file.empty())
    fail(
        "{} started {} ranks, and there is no plugin for {} here: install {} and build again, or "
        "install the package moebius-{}",
        launcher.name, launcher.size, mpi_name(plugin), package_of(plugin), plugin);
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    fail("{} started {} ranks, and the plugin for {} does not open ({}): install {}", launcher.name,
         launcher.size, mpi_name(plugin), printable(::dlerror()), package_of(plugin));
  const auto* table = static_cast<const MoebiusCommTable*>(::dlsym(library, MOEBIUS_COMM_SYMBOL));
  if (table == nullptr) fail("{}: is no plugin of moebius (it has no table of functions)", file);
  if (table->version != MOEBIUS_COMM_VERSION || table->bytes < sizeof *table)
    fail("{}: is a plugin of version {}; expected {}", file, table->version, MOEBIUS_COMM_VERSION);
  return *table;
}

}  // namespace

std::string package_of(const std::string& plugin) {
  if (plugin == "mpich") return "libmpich-dev and mpich";
  return "libopenmpi-dev and openmpi-bin";
}

std::unique_ptr<Comm> open_comm(const Launcher& launcher, const std::vector<std::string>& folders) {
  const MoebiusCommTable& table = open_table(launcher, folders);
  auto owned = std::make_unique<PluginTransport>(table);
  PluginTransport& transport = *owned;
  if (transport.size() != launcher.size || transport.rank() != launcher.rank)
    fail(
        "{} started rank {} of {}, but {} takes itself for rank {} of {}: the launcher belongs to "
        "another MPI than the plugin ({} chooses one)",
        launcher.name, launcher.rank, launcher.size, table.name, transport.rank(), transport.size(),
        kCommVariable);
  auto comm = std::make_unique<Comm>(std::move(owned));
  const auto ranks = static_cast<size_t>(comm->size());
  std::vector<char> names(ranks * kHostBytes);
  std::array<char, kHostBytes> mine{};
  const std::string host = host_name();
  std::copy_n(host.begin(), std::min(host.size(), kHostBytes - 1), mine.begin());
  comm->wait(
      comm->start_all_gather(mine.data(), names.data(), std::vector<size_t>(ranks, kHostBytes)),
      "names of hosts");
  std::vector<std::string> hosts;
  for (size_t r = 0; r < ranks; ++r) {
    const char* name = names.data() + r * kHostBytes;
    hosts.push_back(printable(std::string(name, strnlen(name, kHostBytes))));
  }
  transport.set_hosts(std::move(hosts));
  return comm;
}

}  // namespace moebius
