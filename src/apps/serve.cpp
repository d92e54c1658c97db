// SPDX-License-Identifier: Apache-2.0
// Implements serve: binds the address first, so that waiting clients get an answer, then loads. The
// event thread answers from the start; the first line on stdout is the address.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <thread>

#include "apps/chat/terminal.h"
#include "apps/cli/commit.h"
#include "apps/cli/folder.h"
#include "apps/cli/manners.h"
#include "apps/commands.h"
#include "apps/rank_process.h"
#include "apps/serve_models.h"
#include "base/error.h"
#include "base/file.h"
#include "serve/server.h"

namespace moebius {
namespace {

constexpr const char* kKeyVariable = "MOEBIUS_API_KEY";
constexpr uint64_t kMaxKeyFile = 1 << 20;

struct ServeOptions {
  ModelServing models;
  KvDirOptions kv_dir;
  std::string host = "127.0.0.1", key_file;
  size_t port = 8000, queue = 0, connections = 1024;
  double queue_timeout = 300, drain = 30, sse_ping = 15;
  std::vector<std::string> hosts, origins;
  bool no_auth = false, share_prefixes = false, open_metrics = false, expert_metrics = false,
       log_json = false, log_probes = false;
};

std::vector<ApiKey> keys_of(const ServeOptions& o) {
  std::vector<ApiKey> keys;
  if (!o.key_file.empty()) keys = parse_keys(read_input(o.key_file, kMaxKeyFile), o.key_file);
  if (const char* key = std::getenv(kKeyVariable); key != nullptr && *key != 0)
    for (ApiKey& k : parse_keys(std::string("default:") + key, kKeyVariable))
      keys.push_back(std::move(k));
  return keys;
}

HttpTime milliseconds(double seconds) { return HttpTime(std::llround(1000 * seconds)); }

// Returns the connections for which the system grants descriptors beside those for everything else;
// fewer than `wanted` if it refuses.
size_t fitting_connections(size_t wanted) {
  constexpr size_t kOthers = 192;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  limit.rlim_cur =
      std::max<rlim_t>(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, wanted + kOthers));
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted + kOthers) return wanted;
  const size_t fit = limit.rlim_cur > 2 * kOthers ? limit.rlim_cur - kOthers : kOthers;
  note("{} connections at most: the system allows {} descriptors", fit, limit.rlim_cur);
  return fit;
}

// Writes a line of the log by one call. A line that would have to wait for the log's reader is
// dropped, so that the server never waits for the log. Throws Error if it was lost.
void write_log(std::string line) {
  line = line.substr(0, PIPE_BUF - 1) + "\n";
  pollfd log{STDERR_FILENO, POLLOUT, 0};
  if (poll(&log, 1, 0) != 1 || (log.revents & POLLOUT) == 0 ||
      write(STDERR_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    fail("a line of the log cannot be written");
}

// Returns whether stderr is systemd's journal, which writes the time of each line itself.
bool log_is_journal() {
  const char* journal = std::getenv("JOURNAL_STREAM");  // systemd writes device:inode
  struct stat log {};
  return journal != nullptr && fstat(STDERR_FILENO, &log) == 0 &&
         fmt::format("{}:{}", log.st_dev, log.st_ino) == journal;
}

// Throws Error for text that is no address, before a name is looked up.
void check_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  const std::string plain = host.substr(0, host.find('%'));  // without an IPv6 zone
  if (host != "localhost" && inet_pton(AF_INET, host.c_str(), bytes) != 1 &&
      inet_pton(AF_INET6, plain.c_str(), bytes) != 1)
    fail("--host {}: is no address; expected one such as 127.0.0.1", printable(host));
}

ServerOptions server_options(const ServeOptions& o) {
  check_address(o.host);
  ServerOptions s;
  s.host = o.host;
  s.port = static_cast<uint16_t>(o.port);
  s.version = MOEBIUS_VERSION;
  s.commit = kBuildCommit;
  s.access.keys = o.no_auth ? std::vector<ApiKey>() : keys_of(o);
  s.access.loopback = is_loopback(o.host);
  s.access.hosts = o.hosts;
  s.access.origins = o.origins;
  s.access.open_metrics = o.open_metrics;
  if (!s.access.loopback && s.access.keys.empty() && !o.no_auth)
    throw UsageError(
        fmt::format("--host {} can be reached from other machines: give --api-key-file FILE (or "
                    "{}), or --no-auth",
                    o.host, kKeyVariable));
  s.limits.connections = fitting_connections(o.connections);
  s.queue = o.queue;
  s.queue_time = milliseconds(o.queue_timeout);
  // After the loss of a rank nothing can be finished, and launchers soon kill the remaining ones.
  s.drain_time = milliseconds(RankProcess::current() != nullptr ? std::min(o.drain, 0.3) : o.drain);
  s.cut_off_fails = RankProcess::current() != nullptr;
  s.ping = o.sse_ping > 0;
  if (s.ping) s.ping_time = milliseconds(o.sse_ping);
  s.share_prefixes = o.share_prefixes;
  s.expert_metrics = o.expert_metrics;
  if (!manners().quiet) s.log = [](const std::string& line) { write_log(line); };
  s.log_json = o.log_json;
  s.log_times = !log_is_journal();
  s.log_probes = o.log_probes;
  return s;
}

[[noreturn]] void leave(int status) {
  if (RankProcess* process = RankProcess::current(); process != nullptr) process->leaving();
  std::_Exit(status);
}

int run_serve(const ServeOptions& o) {
  check_kv_budget(o.models.engine);
  // A closed log must not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::atomic<ApiServer*> log{nullptr};
  const std::unique_ptr<KvDisk> disk =
      open_kv_dir(o.kv_dir, o.models.model, [&log](const std::string& words) {
        if (ApiServer* server = log; server != nullptr) server->log_event("kv_dir", words);
      });
  // Declared first: the models outlive the server, which points to them.
  HostedModels models(o.models, disk.get(), [&log](const std::string& words) {
    if (ApiServer* server = log; server != nullptr) server->log_event("model", words);
  });
  ApiServer server(server_options(o));
  log = &server;
  if (o.log_json) manners().quiet = true;  // stderr holds only JSON objects
  const uint16_t port = server.listen();
  const bool six = o.host.find(':') != std::string::npos;
  std::cout << fmt::format("http://{}:{}\n", six ? "[" + o.host + "]" : o.host, port) << std::flush;
  std::atomic<bool> ready{false};
  int status = 0;
  std::thread events([&] {
    pthread_setname_np(pthread_self(), "moebius-events");
    status = server.run();
    if (!ready) leave(status);  // asked to end while it loads
  });
  try {
    models.load([&](double share) { server.loading(share); });
    ready = true;
    // Later loads write lines of the log instead of progress.
    if (o.models.loads_again()) manners().quiet = true;
    server.ready(models.offers());
  } catch (...) {
    ready = true;
    server.stop(1);
    events.join();
    throw;
  }
  events.join();
  // A step that never ends must not keep the process alive.
  if (!models.stop(std::chrono::milliseconds(500))) leave(status);
  if (disk != nullptr && !server.at_once()) {
    // Another signal ends the process at once.
    for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, SIG_DFL);
    models.keep_prompts();
  }
  log = nullptr;
  return status;
}

// Chooses the bundled model if no folder was named.
void take_bundled(ModelServing& models) {
  if (models.named.empty() && models.model.folder.empty()) models.model.folder = bundled_folder();
}

std::vector<std::string> tool_format_names() {
  std::vector<std::string> out = {"auto", "none"};
  for (const ToolFormat& f : tool_formats()) out.emplace_back(f.name);
  return out;
}

std::vector<std::string> reasoning_names() {
  std::vector<std::string> out = {"auto", "none"};
  for (const ReasoningFormat& f : reasoning_formats()) out.emplace_back(f.name);
  return out;
}

}  // namespace

Command serve_command() {
  auto o = std::make_shared<ServeOptions>();
  Command c("serve", "serves a model over HTTP, compatible with the OpenAI API");
  ModelServing& m = o->models;
  c.folder(m.model.folder).bundled = false;  // not needed if --model names folders
  c.section("Address");
  c.option("--host", "ADDRESS", &o->host, "address to listen on");
  c.option("--port", "N", &o->port, "port; 0: a free one", {.limits = {{0, 65535}}});
  c.option("--connections", "N", &o->connections, "most connections at once",
           {.limits = {{1, 100000}}, .rare = true});
  c.section("Access");
  c.option("--api-key-file", "FILE", &o->key_file, "API keys, one name:key per line",
           {.default_text = "none", .kind = ValueKind::kFile});
  c.flag("--no-auth", o->no_auth, "ask for no API key, whatever the address");
  c.option("--allowed-host", "NAME", &o->hosts, "another host name that requests may carry",
           {.default_text = "none", .rare = true});
  c.option("--cors-origin", "URL", &o->origins, "origin whose pages may send requests",
           {.default_text = "none"});
  c.flag("--open-metrics", o->open_metrics, "/metrics needs no API key", {.rare = true});
  c.section("Model");
  c.option("--model", "NAME=DIR", &m.named,
           "a model and the name that requests give it, instead of DIR; one for each",
           {.default_text = "none"});
  c.option("--alias", "NAME", &m.aliases,
           "another name of the model; with --model: ALIAS=NAME, or ALIAS of the first",
           {.default_text = "none"});
  c.flag("--any-model", m.any_model, "accept every model name in requests: the first answers",
         {.rare = true});
  c.option("--sleep-after", "S", &m.sleep_after,
           "seconds without a request after which a model frees its memory; 0: never",
           {.limits = {{0, 1 << 30}}, .rare = true});
  c.option("--ctx,-c", "N", &m.context,
           "context length in tokens, prompt included; 0: the model's own",
           {.limits = {{0, 1 << 30}}});
  c.option("--max-output", "N", &m.max_output, "most tokens of an answer; 0: no limit",
           {.limits = {{0, 1 << 30}}});
  c.section("Answers");
  add_chat_template_option(c, m.model.chat_template);
  c.option("--tool-format", "NAME", &m.tool_format,
           "how the model writes calls of tools; auto: as its chat template says",
           {.choices = tool_format_names()});
  c.option("--reasoning", "NAME", &m.reasoning,
           "how the model marks its reasoning; auto: as its chat template says",
           {.choices = reasoning_names()});
  c.option("--reasoning-field", "NAME", &m.reasoning_field,
           "member of messages that holds reasoning: reasoning, reasoning_content or both",
           {.choices = {"reasoning", "reasoning_content", "both"},
            .default_text = "both, in streams reasoning_content",
            .rare = true});
  c.section("Load");
  c.option("--parallel", "N", &m.parallel, "sequences that run at the same time",
           {.limits = {{1, 4096}}});
  c.option("--queue", "N", &o->queue, "sequences that may wait; 0: four times --parallel",
           {.limits = {{0, 1 << 20}}, .rare = true});
  c.option("--queue-timeout", "S", &o->queue_timeout, "longest wait in the queue, in seconds",
           {.limits = {{0.1, 86400}}, .rare = true});
  c.option("--stretch", "X", &m.stretch,
           "longest step with prefill, as a multiple of a decode step alone",
           {.limits = {{1, 1000}}, .rare = true});
  add_engine_options(c, m.engine);
  add_kv_dir_options(c, o->kv_dir);
  c.flag("--priorities", m.priorities, "let requests set a priority", {.rare = true});
  c.flag("--share-prefixes", o->share_prefixes,
         "share cached prompts between API keys (response times then reveal other keys' prompts)",
         {.rare = true});
  c.section("Running");
  c.option("--drain", "S", &o->drain, "seconds that running answers get to finish after SIGTERM",
           {.limits = {{0, 86400}}, .rare = true});
  c.option("--sse-ping", "S", &o->sse_ping,
           "seconds of silence after which a stream sends a ping; 0: never",
           {.limits = {{0, 86400}}, .rare = true});
  c.flag("--log-json", o->log_json, "write the log as JSON objects, one per line");
  c.flag("--log-probes", o->log_probes, "log answers of /health, /live and /metrics as well",
         {.rare = true});
  c.flag("--expert-metrics", o->expert_metrics, "metrics per layer and expert", {.rare = true});
  add_model_options(c, m.model);
  c.follow = [o] {
    take_bundled(o->models);
    return follow_rank_0(o->models.model);
  };
  c.examples = {"moebius serve", "moebius serve DIR --port 8080 --alias gpt-4o",
                "moebius serve DIR --host 0.0.0.0 --api-key-file keys.txt",
                "moebius serve --model small=DIR --model large=DIR --sleep-after 600"};
  c.action = [o](const Command& self) {
    if (!o->models.named.empty() && self.given("DIR"))
      throw UsageError("models are given by --model and as a folder; leave one of them out");
    take_bundled(o->models);
    settle_speculation(o->models.engine, o->models.model);
    return run_serve(*o);
  };
  return c;
}

}  // namespace moebius
