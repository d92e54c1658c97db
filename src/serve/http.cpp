// SPDX-License-Identifier: Apache-2.0
// Beast's parser reads heads and chunks, Asio does sockets and timers.
#include "serve/http.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <csignal>
#include <deque>
#include <unordered_set>

#include "base/error.h"

namespace moebius {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

constexpr size_t kAhead = 64 << 10;      // bytes of further requests that are read while one runs
constexpr size_t kReadPiece = 16 << 10;  // per read
constexpr int kSendBuffer = 256 << 10;
constexpr size_t kLingerBytes = 64 << 20;

class BeastParser final : public HttpParser, private http::basic_parser<true> {
 public:
  explicit BeastParser(HttpRequest& into) : into_(into) {
    header_limit(UINT32_MAX);  // the reader counts
    body_limit(boost::none);
  }
  Taken put(std::string_view bytes) override {
    error_code ec;
    Taken taken;
    taken.bytes = basic_parser::put(asio::buffer(bytes.data(), bytes.size()), ec);
    if (ec) taken.error = ec.message();
    taken.bad_version = ec == http::error::bad_version;
    return taken;
  }
  bool head_done() const override { return is_header_done(); }
  bool keep_alive() const override { return basic_parser::keep_alive(); }

 private:
  using View = boost::beast::string_view;
  static std::string text(View v) { return {v.data(), v.size()}; }
  void on_request_impl(http::verb, View method, View target, int version, error_code&) override {
    into_.method = text(method);
    into_.target = text(target);
    into_.version = version;
  }
  void on_response_impl(int, View, int, error_code&) override {}
  void on_field_impl(http::field, View name, View value, error_code&) override {
    into_.fields.emplace_back(text(name), text(value));
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(View body, error_code&) override { return keep(body); }
  void on_chunk_header_impl(uint64_t size, View, error_code&) override { chunk = size; }
  size_t on_chunk_body_impl(uint64_t, View body, error_code&) override { return keep(body); }
  void on_finish_impl(error_code&) override {}
  size_t keep(View body) {
    into_.body.append(body.data(), body.size());
    return body.size();
  }
  HttpRequest& into_;
};

class HttpConnection;

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpLimits& limits, HttpHandler& handler)
      : limits_(limits), handler_(handler), acceptor_(io_), signals_(io_), retry_(io_) {}
  ~BeastServer() override;

  uint16_t listen(const std::string& host, uint16_t port) override;
  void run() override { io_.run(); }
  void post(std::function<void()> work) override { asio::post(io_, std::move(work)); }
  void after(HttpTime time, std::function<void()> work) override;
  void on_signal(std::function<void()> work) override;
  void drain(bool waiting) override;
  void stop() override { io_.stop(); }
  HttpCounts counts() const override;

 private:
  friend class HttpConnection;
  friend class Exchange;
  void accept();

  HttpLimits limits_;
  HttpHandler& handler_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  Tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer retry_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  bool draining_ = false;
  size_t body_bytes_ = 0;             // of all requests
  HttpConnection* exempt_ = nullptr;  // may read beyond the limit, so that reading never ends
  std::deque<std::weak_ptr<HttpConnection>> paused_;
};

class Exchange;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(BeastServer& server, Tcp::socket socket)
      : server_(server),
        socket_(std::move(socket)),
        reader_(server.limits_),
        deadline_(server.io_),
        stall_(server.io_) {}
  void start();
  void refuse() { fail_with(503, "too many connections"); }
  void resume();
  // `waiting`: also when a request is still coming in.
  void close_if_idle(bool waiting) {
    if (!exchange_ && !finished_ && !closing_ && (waiting || !reader_.started())) close();
  }
  bool active() const { return exchange_ != nullptr; }

  // For its exchange.
  void put_head(const HttpReply& reply, std::optional<size_t> length, bool chunked);
  void put(std::string_view bytes);
  void finish(bool keep);
  bool overfull() const { return outbox_.size() + writing_.size() > server_.limits_.unsent; }
  void close();

 private:
  friend class Exchange;
  void read();
  void on_read(error_code ec, size_t n);
  void process();
  bool head_done();
  void dispatch();
  void count_body();
  void release_body();
  void fail_with(int status, const std::string& reason);
  void flush();
  void written(error_code ec);
  void linger();
  void arm(HttpTime time);
  void expired();

  BeastServer& server_;
  Tcp::socket socket_;
  HttpReader reader_;
  asio::steady_timer deadline_, stall_;
  std::string pending_;  // read, not yet parsed
  std::array<char, kReadPiece> piece_;
  std::string outbox_, writing_;
  std::shared_ptr<Exchange> exchange_;
  size_t requests_ = 0, counted_ = 0, discarded_ = 0;
  HttpTime body_time_{0};
  bool reading_ = false, flush_posted_ = false, head_seen_ = false, paused_ = false;
  bool finished_ = false;  // the answer stands in the outbox
  bool closing_ = false;   // after the outbox
  bool lingering_ = false, closed_ = false;
};

class Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<HttpConnection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}
  HttpRequest& request() override { return request_; }
  bool open() const override { return connection_ != nullptr; }
  void drop_body() override {
    std::string().swap(request_.body);
    if (connection_) connection_->release_body();
  }
  void reply(HttpReply reply) override {
    if (!connection_) return;
    const bool keep = keeps(reply);
    reply.close = !keep;
    connection_->put_head(reply, reply.body.size(), false);
    if (request_.method != "HEAD") connection_->put(reply.body);
    leave(keep);
  }
  void begin(HttpReply head) override {
    if (!connection_) return;
    chunked_ = request_.version == 11;
    keep_ = chunked_ && keeps(head);
    head.close = !keep_;
    connection_->put_head(head, std::nullopt, chunked_);
  }
  void send(std::string_view piece) override {
    if (!connection_ || piece.empty() || request_.method == "HEAD") return;
    if (chunked_) connection_->put(fmt::format("{:x}\r\n", piece.size()));
    connection_->put(piece);
    if (chunked_) connection_->put("\r\n");
    if (connection_->overfull()) std::shared_ptr(connection_)->close();
  }
  void end() override {
    if (!connection_) return;
    if (chunked_ && request_.method != "HEAD") connection_->put("0\r\n\r\n");
    leave(keep_);
  }
  void lost() {
    connection_.reset();
    if (const auto gone = std::exchange(on_gone, nullptr)) gone();
  }

 private:
  bool keeps(const HttpReply& reply) const {
    return request_.keep_alive && !reply.close && !connection_->server_.draining_ &&
           connection_->requests_ < connection_->server_.limits_.requests;
  }
  void leave(bool keep) {
    on_gone = nullptr;
    std::exchange(connection_, nullptr)->finish(keep);
  }
  std::shared_ptr<HttpConnection> connection_;
  HttpRequest request_;
  bool chunked_ = false, keep_ = false;
};

void HttpConnection::start() {
  error_code ec;
  socket_.set_option(Tcp::no_delay(true), ec);
  socket_.set_option(asio::socket_base::keep_alive(true), ec);
  // What the system would hold for a client that does not read grows to megabytes otherwise.
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ec);
  const auto most = static_cast<unsigned>(server_.limits_.write_time.count());
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
  // Probes find a peer that vanished while nothing was to be sent; the system's begin after hours.
  const int begin = static_cast<int>(std::max(1u, most / 2000)), apart = std::max(1, begin / 3);
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &begin, sizeof begin);
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &apart, sizeof apart);
  arm(server_.limits_.idle_time);
  read();
}

void HttpConnection::arm(HttpTime time) {
  deadline_.expires_after(time);
  deadline_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec && !self->closed_) self->expired();
  });
}

void HttpConnection::expired() {
  if (deadline_.expiry() > std::chrono::steady_clock::now()) return;  // armed again meanwhile
  if (exchange_) return;
  if (!reader_.started() || closing_) return close();
  fail_with(408, head_seen_ ? "the body did not come in time" : "the head did not come in time");
}

// While an answer is in the making a read stays pending: it notices a client that leaves.
void HttpConnection::read() {
  if (reading_ || closed_ || paused_ || (exchange_ && pending_.size() >= kAhead)) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(piece_),
                          [self = shared_from_this()](error_code ec, size_t n) {
                            self->reading_ = false;
                            self->on_read(ec, n);
                          });
}

void HttpConnection::on_read(error_code ec, size_t n) {
  if (closed_) return;
  if (ec) {
    // What was answered in full still goes out to a client that only closed its side.
    if (finished_ && ec == asio::error::eof && !lingering_) {
      closing_ = true;
      return;
    }
    return close();
  }
  if (closing_) {  // an answer is on its way; what comes now is thrown away
    discarded_ += n;
    if (discarded_ > kLingerBytes) return close();
    return read();
  }
  pending_.append(piece_.data(), n);
  process();
  read();
}

void HttpConnection::process() {
  while (!exchange_ && !finished_ && !closing_ && !closed_ && !pending_.empty()) {
    const bool fresh = !reader_.started();
    const size_t used = reader_.push(pending_);
    pending_.erase(0, used);
    if (fresh) arm(server_.limits_.header_time);
    if (reader_.state() == HttpReader::State::kBad) {
      fail_with(reader_.status(), reader_.reason());
      return;
    }
    if (reader_.state() == HttpReader::State::kHead) return;
    if (!std::exchange(head_seen_, true) && !head_done()) return;
    count_body();
    if (reader_.state() == HttpReader::State::kDone) dispatch();
  }
}

// False: the request was refused.
bool HttpConnection::head_done() {
  if (std::optional<HttpReply> no = server_.handler_.refuse(reader_.request())) {
    const bool whole = reader_.state() == HttpReader::State::kDone;
    no->close = no->close || !whole || !reader_.request().keep_alive || server_.draining_ ||
                requests_ + 1 >= server_.limits_.requests;
    const bool head = reader_.request().method == "HEAD";
    put_head(*no, no->body.size(), false);
    if (!head) put(no->body);
    ++requests_;
    finish(!no->close);
    return false;
  }
  if (reader_.state() == HttpReader::State::kDone) return true;
  const uint64_t length = reader_.length().value_or(server_.limits_.body);
  body_time_ =
      std::min(server_.limits_.body_most,
               server_.limits_.body_time +
                   HttpTime(1000 * static_cast<int64_t>(length / server_.limits_.body_rate)));
  arm(body_time_);
  if (reader_.expects_continue() && pending_.empty()) put("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void HttpConnection::count_body() {
  const size_t now = reader_.request().body.size();
  server_.body_bytes_ += now - counted_;
  counted_ = now;
  if (reader_.state() != HttpReader::State::kBody || server_.body_bytes_ <= server_.limits_.bodies)
    return;
  if (server_.exempt_ == nullptr) server_.exempt_ = this;
  if (server_.exempt_ == this) return;
  paused_ = true;
  server_.paused_.push_back(weak_from_this());
}

void HttpConnection::release_body() {
  server_.body_bytes_ -= std::exchange(counted_, 0);
  if (server_.exempt_ == this) server_.exempt_ = nullptr;
  for (auto waiting = std::exchange(server_.paused_, {}); auto& weak : waiting)
    if (const auto c = weak.lock()) server_.post([c] { c->resume(); });
}

void HttpConnection::resume() {
  if (!std::exchange(paused_, false) || closed_) return;
  count_body();
  process();
  read();
}

void HttpConnection::dispatch() {
  deadline_.cancel();
  ++requests_;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), std::move(reader_.request()));
  server_.handler_.serve(exchange_);
}

void HttpConnection::fail_with(int status, const std::string& reason) {
  HttpReply reply = server_.handler_.broken(status, reason);
  reply.close = true;
  put_head(reply, reply.body.size(), false);
  put(reply.body);
  finish(false);
}

void HttpConnection::put_head(const HttpReply& reply, std::optional<size_t> length, bool chunked) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, http_reason(reply.status));
  for (const auto& [name, value] : reply.fields) head += fmt::format("{}: {}\r\n", name, value);
  const bool bodiless = reply.status == 204 || reply.status == 304;
  if (length && !bodiless) head += fmt::format("Content-Length: {}\r\n", *length);
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  head += reply.close ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n";
  put(head);
}

// Leaves at the end of this turn of the event loop, with everything else of the turn.
void HttpConnection::put(std::string_view bytes) {
  if (closed_) return;
  outbox_ += bytes;
  if (!writing_.empty() || std::exchange(flush_posted_, true)) return;
  asio::post(server_.io_, [self = shared_from_this()] {
    self->flush_posted_ = false;
    self->flush();
  });
}

void HttpConnection::flush() {
  if (closed_ || !writing_.empty()) return;
  if (outbox_.empty()) return written({});
  writing_.swap(outbox_);
  stall_.expires_after(server_.limits_.write_time);
  stall_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec && !self->writing_.empty()) self->close();
  });
  asio::async_write(socket_, asio::buffer(writing_),
                    [self = shared_from_this()](error_code ec, size_t) {
                      self->writing_.clear();
                      self->stall_.cancel();
                      self->written(ec);
                    });
}

void HttpConnection::written(error_code ec) {
  if (ec) return close();
  if (!outbox_.empty()) return flush();
  if (!finished_) return;
  if (closing_) return linger();
  finished_ = false;
  reader_.next();
  head_seen_ = false;
  arm(server_.limits_.idle_time);
  process();
  read();
}

void HttpConnection::finish(bool keep) {
  const auto self = shared_from_this();
  exchange_.reset();
  release_body();
  finished_ = true;
  closing_ = closing_ || !keep;
  put("");
}

// A connection that is closed with unread bytes would take the answer with it: the client may read
// it, and what it still sends is thrown away.
void HttpConnection::linger() {
  if (std::exchange(lingering_, true)) return;
  error_code ec;
  socket_.shutdown(Tcp::socket::shutdown_send, ec);
  arm(server_.limits_.linger_time);
  paused_ = false;
  read();
}

void HttpConnection::close() {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  error_code ec;
  deadline_.cancel();
  stall_.cancel();
  socket_.close(ec);
  release_body();
  server_.connections_.erase(self);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost();
}

BeastServer::~BeastServer() {
  while (!connections_.empty()) (*connections_.begin())->close();
  io_.restart();
  io_.poll();  // what waits holds connections
}

uint16_t BeastServer::listen(const std::string& host, uint16_t port) {
  error_code ec;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec)
    fail("--host {}: {}; expected an address such as 127.0.0.1", printable(host), ec.message());
  const Tcp::endpoint endpoint(address, port);
  acceptor_.open(endpoint.protocol(), ec);
  if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(1024, ec);
  if (ec) fail("cannot listen on {} port {}: {}", printable(host), port, ec.message());
  accept();
  return acceptor_.local_endpoint().port();
}

void BeastServer::accept() {
  acceptor_.async_accept([this](error_code ec, Tcp::socket socket) {
    if (ec == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (ec) {  // out of descriptors: try again
      retry_.expires_after(HttpTime(50));
      retry_.async_wait([this](error_code e) {
        if (!e) accept();
      });
      return;
    }
    // Some more than the limit are told so; a flood is not.
    if (connections_.size() < limits_.connections + 64) {
      const auto c = std::make_shared<HttpConnection>(*this, std::move(socket));
      const bool full = connections_.size() >= limits_.connections;
      connections_.insert(c);
      full ? c->refuse() : c->start();
    }
    accept();
  });
}

void BeastServer::after(HttpTime time, std::function<void()> work) {
  const auto timer = std::make_shared<asio::steady_timer>(io_, time);
  timer->async_wait([timer, work = std::move(work)](error_code ec) {
    if (!ec) work();
  });
}

void BeastServer::on_signal(std::function<void()> work) {
  error_code ec;
  signals_.add(SIGTERM, ec);
  signals_.add(SIGINT, ec);
  signals_.async_wait([this, work = std::move(work)](error_code e, int) {
    if (e) return;
    work();
    on_signal(work);
  });
}

void BeastServer::drain(bool waiting) {
  draining_ = true;
  error_code ec;
  acceptor_.close(ec);
  for (const auto& c : std::vector(connections_.begin(), connections_.end()))
    c->close_if_idle(waiting);
}

HttpCounts BeastServer::counts() const {
  HttpCounts n;
  for (const auto& c : connections_) ++(c->active() ? n.active : n.idle);
  return n;
}

}  // namespace

std::unique_ptr<HttpParser> HttpParser::make(HttpRequest& into) {
  return std::make_unique<BeastParser>(into);
}

std::unique_ptr<HttpServer> HttpServer::make(const HttpLimits& limits, HttpHandler& handler) {
  return std::make_unique<BeastServer>(limits, handler);
}

}  // namespace moebius
