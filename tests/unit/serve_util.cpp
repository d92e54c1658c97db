// SPDX-License-Identifier: Apache-2.0
#include "unit/serve_util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "unit/test_util.h"

namespace moebius::test {

const Tokenizer& bundled_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_folder(bundled_model_dir().string());
  return tokenizer;
}

const ChatTemplates& bundled_templates() {
  static const ChatTemplates templates = ChatTemplates::from_folder(bundled_model_dir().string());
  return templates;
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

FakeGenerator::FakeGenerator(const Tokenizer& tokenizer, size_t slots, Script script)
    : tokenizer_(tokenizer), slots_(slots), script_(std::move(script)) {}

FakeGenerator::~FakeGenerator() { halt(); }

void FakeGenerator::halt() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FakeGenerator::start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

uint64_t FakeGenerator::submit(GenerationRequest request) {
  const std::lock_guard lock(mutex_);
  auto job = std::make_unique<Job>(Job{next_++, std::move(request), {}});
  for (size_t i = 0; i < job->request.choices; ++i) {
    std::vector<int32_t> tokens;
    if (script_) {
      tokens = script_(job->request, i);
    } else {
      for (size_t k = 0; k < job->request.max_new; ++k)
        tokens.push_back(job->request.prompt[k % job->request.prompt.size()]);
    }
    job->choices.push_back({i, std::move(tokens), ChoiceText(tokenizer_, job->request)});
  }
  jobs_.push_back(std::move(job));
  wake_.notify_all();
  return jobs_.back()->id;
}

void FakeGenerator::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  cancelled += std::erase_if(jobs_, [&](const auto& job) { return job->id == id; });
}

GeneratorStats FakeGenerator::stats() const {
  const std::lock_guard lock(mutex_);
  GeneratorStats s;
  s.slots = slots_;
  size_t sequences = 0;
  for (const auto& job : jobs_) sequences += job->choices.size();
  s.running = std::min(sequences, slots_);
  s.waiting = sequences - s.running;
  s.new_tokens = tokens_made;
  s.kv_blocks_used = s.running;
  s.expert_layers = 2;
  s.expert_rows = {1, 2, 3, 4};
  s.phase_seconds = {{"moe", 1.5}, {"sampling", 0.25}};
  return s;
}

void FakeGenerator::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, std::chrono::milliseconds(5),
                   [&] { return ending_ || (!jobs_.empty() && !held); });
    if (ending_) return;
    if (held || jobs_.empty()) continue;
    std::vector<GenerationEvent> events;
    step(events);
    const StepSummary summary{0, events.size(), events.size(), 0.001, 0.001, 0.5};
    lock.unlock();
    sink_(std::move(events), summary);
    if (pace_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pace_us));
    lock.lock();
  }
}

void FakeGenerator::step(std::vector<GenerationEvent>& events) {
  if (dies) {
    dead_ = true;
    jobs_.clear();
    return;
  }
  size_t running = 0;
  for (const auto& job : jobs_)
    for (Choice& c : job->choices)
      if (!c.ended && running < slots_) {
        ++running;
        events.push_back(advance(*job, c));
      }
  most_running = std::max<size_t>(most_running, running);
  std::erase_if(jobs_, [](const auto& job) {
    return std::all_of(job->choices.begin(), job->choices.end(),
                       [](const Choice& c) { return c.ended; });
  });
}

GenerationEvent FakeGenerator::advance(const Job& job, Choice& c) {
  const GenerationRequest& r = job.request;
  GenerationEvent e;
  e.id = job.id;
  e.choice = c.index;
  e.cached_tokens = r.prompt.size() / 2;
  const auto made = [&](int32_t token) {
    GeneratedToken t{token, -0.25f, {}};
    for (int k = 0; k < r.logprobs; ++k)
      t.top.emplace_back(k == 0 ? token : token + k, -0.25f - static_cast<float>(k));
    return t;
  };
  if (r.prompt_logprobs && c.index == 0 && c.produced == 0)
    for (size_t i = 1; i < r.prompt.size(); ++i) e.prompt.push_back(made(r.prompt[i]));
  const auto end = [&](EndReason reason) {
    c.ended = true;
    e.end = reason;
    e.text += c.text.finish();
    return e;
  };
  if (fail_at > 0 && c.produced + 1 == fail_at) {
    e.error = "no finite logit";
    return end(EndReason::kError);
  }
  if (c.produced >= std::min(r.max_new, c.tokens.size())) return end(EndReason::kLength);
  const int32_t token = c.tokens[c.produced++];
  ++tokens_made;
  e.tokens.push_back(made(token));
  const bool stop =
      std::find(r.stop_tokens.begin(), r.stop_tokens.end(), token) != r.stop_tokens.end();
  if (stop) return end(EndReason::kStop);
  e.text = c.text.push(token);
  if (c.text.stopped()) {
    e.stop_string = c.text.stop();
    return end(EndReason::kStop);
  }
  return c.produced >= r.max_new ? end(EndReason::kLength) : e;
}

std::vector<std::string> Response::events() const {
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string one = body.substr(at, end - at);
    if (one.starts_with("data: ")) out.push_back(one.substr(6));
    at = end + 2;
  }
  return out;
}

Client::Client(uint16_t port, int seconds, int receive_buffer) {
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  const timeval time{seconds, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  if (receive_buffer > 0)
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) eof_ = true;
}
Client::~Client() { close(fd_); }

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool Client::fill() {
  char piece[65536];
  const ssize_t n = recv(fd_, piece, sizeof piece, 0);
  if (n <= 0) {
    eof_ = eof_ || n == 0 || errno == ECONNRESET;
    return false;
  }
  buffer_.append(piece, static_cast<size_t>(n));
  return true;
}

std::string Client::read_some() {
  if (buffer_.empty()) fill();
  return std::exchange(buffer_, {});
}

bool Client::at_end() {
  while (fill()) {
  }
  return eof_;
}
void Client::half_close() { shutdown(fd_, SHUT_WR); }
void Client::reset() {
  const linger hard{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close(fd_);
  fd_ = -1;
}

Response Client::read(bool head_only) {
  Response r;
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
    if (!fill()) return r;
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  r.status = std::atoi(head.c_str() + 9);
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t stop = head.find("\r\n", at), colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    r.fields[name] = head.substr(colon + 2, stop - colon - 2);
    at = stop + 2;
  }
  if (r.status == 100) return read(head_only);
  if (head_only) return r;
  if (const auto length = r.fields.find("content-length"); length != r.fields.end()) {
    const size_t n = std::stoull(length->second);
    while (buffer_.size() < n && fill()) {
    }
    r.body = buffer_.substr(0, n);
    buffer_.erase(0, n);
  } else if (r.fields.contains("transfer-encoding")) {
    for (;;) {
      size_t line;
      while ((line = buffer_.find("\r\n")) == std::string::npos)
        if (!fill()) return r;
      const size_t n = std::stoull(buffer_, nullptr, 16);
      while (buffer_.size() < line + 2 + n + 2)
        if (!fill()) return r;
      r.body += buffer_.substr(line + 2, n);
      buffer_.erase(0, line + 2 + n + 2);
      if (n == 0) break;
    }
  } else {
    while (fill()) {
    }
    r.body = std::exchange(buffer_, {});
  }
  if (r.fields["connection"] == "close") r.closed = at_end();
  return r;
}

std::string get(std::string_view path, std::string_view more) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, more);
}

std::string post(std::string_view path, std::string_view body, std::string_view more) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n{}\r\n{}",
      path, body.size(), more, body);
}

FakeServer::FakeServer(ServerOptions options, FakeGenerator::Script script, size_t slots)
    : generator(bundled_tokenizer(), slots, std::move(script)) {
  model.name = "tiny";
  model.aliases = {"other-name"};
  model.tokenizer = &bundled_tokenizer();
  model.templates = &bundled_templates();
  model.defaults.eos = {4092, 4094};
  model.context = 2048;
  model.vocab = 4096;
  model.slots = slots;
  model.created = 1;
  model.version = "0.2.0";
  model.commit = "1a2b3c4d5e6f";
  options.port = 0;
  options.log = [this](const std::string& line) { log.push_back(line); };
  server = std::make_unique<ApiServer>(options);
  port = server->listen();
  server->ready(model, generator);
  thread_ = std::thread([this] { status_ = server->run(); });
  eventually([&] { return ask(get("/health")).status == 200; });
}

FakeServer::~FakeServer() {
  server->stop();
  join();
  generator.halt();
}

int FakeServer::join() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

Response FakeServer::ask(const std::string& bytes) const {
  Client client(port);
  client.send(bytes);
  return client.read();
}

Response FakeServer::chat(const std::string& fields) const {
  return ask(post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"It was a dark night."}])" +
                      (fields.empty() ? "" : "," + fields) + "}"));
}

Response FakeServer::completion(const std::string& fields) const {
  return ask(post("/v1/completions", "{" + fields + "}"));
}

std::string FakeServer::metric(const std::string& line) const {
  const std::string text = ask(get("/metrics")).body, key = "\nmoebius_" + line + " ";
  const size_t at = text.find(key);
  if (at == std::string::npos) return "";
  return text.substr(at + key.size(), text.find('\n', at + 1) - at - key.size());
}

}  // namespace moebius::test
