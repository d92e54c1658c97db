// SPDX-License-Identifier: Apache-2.0
// Implements the server on Asio's sockets and timers.
#include "serve/http.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <csignal>
#include <deque>
#include <unordered_set>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "serve/connection_slots.h"
#include "serve/http_exchange.h"

namespace moebius {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

constexpr size_t kAhead = 64 << 10;      // bytes of further requests that are read while one runs
constexpr size_t kReadPiece = 16 << 10;  // bytes per read
constexpr size_t kLingerBytes = 64 << 20;
// Further connections that are told the server is full; a flood of them is not.
constexpr size_t kTold = 64;
constexpr size_t kBacklog = 1024;

class HttpConnection;

using Places = ConnectionSlots<HttpConnection>;
using Exchange = HttpExchangeOf<HttpConnection>;

class AsioServer final : public HttpServer {
 public:
  AsioServer(const HttpLimits& limits, HttpHandler& handler)
      : limits_(limits), handler_(handler), acceptor_(io_), signals_(io_), retry_(io_) {}
  ~AsioServer() override;

  uint16_t listen(const std::string& host, uint16_t port) override;
  void run() override;
  void post(std::function<void()> work) override;
  void after(HttpTime time, std::function<void()> work) override;
  void on_signal(std::function<void()> work) override;
  bool drain(bool last) override;
  void stop() override;
  HttpCounts counts() const override;

 private:
  friend class HttpConnection;
  void accept();
  int next_client();
  void take(int client);
  Places* free_place();
  void close_listener();
  std::vector<std::shared_ptr<HttpConnection>> all() const {
    return {connections_.begin(), connections_.end()};
  }

  HttpLimits limits_;
  HttpHandler& handler_;
  Places usual_{limits_.connections}, kept_{limits_.kept}, told_{kTold};
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  Tcp::acceptor acceptor_;
  Tcp protocol_ = Tcp::v4();  // protocol of the address
  asio::signal_set signals_;
  asio::steady_timer retry_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;
  std::atomic<bool> stopped_{false};
  bool draining_ = false;
  size_t body_bytes_ = 0;  // bytes of all requests' bodies
  // Connection whose body may exceed the limit of all bodies, so that some request always gets read
  // completely.
  HttpConnection* exempt_ = nullptr;
  std::deque<std::weak_ptr<HttpConnection>> paused_;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(AsioServer& server, Places& place)
      : server_(server),
        place_(place, *this),
        late_(server.draining_),
        socket_(server.io_),
        reader_(server.limits_),
        deadline_(server.io_),
        stall_(server.io_) {}
  // Takes over an accepted socket; call it before start().
  void adopt(const Tcp& protocol, int socket) { socket_.assign(protocol, socket); }
  void start();
  void refuse() { fail_with(503, "too many connections"); }
  void resume();
  void drain(bool last);
  bool unread() const;  // true if bytes came that were not looked at
  // Returns whether the connection keeps the listener: it has an answer, or a request, from before
  // the drain.
  bool holds_listener(bool last) const {
    return !late_ && !lingering_ && (exchange_ || finished_ || (!last && reader_.started()));
  }
  // Runs work for this connection; an exception ends the connection here.
  template <class Work>
  void guard(Work&& work) noexcept;
  void forget() noexcept;
  bool active() const { return exchange_ != nullptr; }

  // Writes bytes of an answer; called by the connection's exchange.
  void put(std::string_view bytes);
  void finish(bool keep);
  bool overfull() const { return outbox_.size() + writing_.size() > server_.limits_.unsent; }
  bool may_stay() const;  // true if another request may follow
  void close() noexcept;
  // Closes the connection because no answer could be made; sends an error first if no part of an
  // answer was sent.
  void give_up() noexcept;
  void release_body();
  HttpHandler& handler() const { return server_.handler_; }

 private:
  void read();
  void on_read(error_code ec, size_t n);
  void process();
  bool head_done();
  void dispatch();
  void count_body();
  void fail_with(int status, const std::string& reason);
  void flush();
  void written(error_code ec);
  void linger();
  void arm(HttpTime time);
  void expired();
  // Wraps work that Asio will call for this connection.
  template <class Work>
  auto guarded(Work work) {
    return [self = shared_from_this(), work](const auto&... values) {
      self->guard([&] { work(*self, values...); });
    };
  }

  AsioServer& server_;
  Places::ConnectionSlot place_;
  const bool late_;  // connected while the server drained
  Tcp::socket socket_;
  HttpReader reader_;
  asio::steady_timer deadline_, stall_;
  std::string peer_;     // the client's address
  std::string pending_;  // bytes that were read but not parsed
  std::array<char, kReadPiece> piece_;
  std::string outbox_, writing_;
  std::shared_ptr<Exchange> exchange_;
  size_t requests_ = 0, counted_ = 0, discarded_ = 0;
  bool reading_ = false, flush_posted_ = false, head_seen_ = false, paused_ = false;
  bool finished_ = false;  // the whole answer is in the outbox
  bool closing_ = false;   // closes after the outbox was sent
  bool lingering_ = false, closed_ = false;
};

template <class Work>
void HttpConnection::guard(Work&& work) noexcept {
  const auto self = shared_from_this();
  if (server_.stopped_ || !threw(server_.handler_, work) || closed_) return;
  if (exchange_) return std::shared_ptr(exchange_)->fail();
  if (finished_ || closing_) {  // a finished answer is still sent
    closing_ = true;
    if (outbox_.empty() && writing_.empty()) close();
    return;
  }
  if (threw(server_.handler_, [&] { fail_with(500, kHttpFailed); })) give_up();
}

bool HttpConnection::may_stay() const {
  return !server_.draining_ && place_.of(server_.usual_) && requests_ < server_.limits_.requests;
}

void HttpConnection::start() {
  error_code ec;
  const Tcp::endpoint peer = socket_.remote_endpoint(ec);
  if (!ec) peer_ = peer.address().to_string();
  set_socket_limits(socket_.native_handle(), server_.limits_.write_time);
  place_.set(Places::Stage::kIdle);
  arm(server_.limits_.first_time);
  read();
}

void HttpConnection::arm(HttpTime time) {
  deadline_.expires_after(time);
  deadline_.async_wait(guarded([](HttpConnection& c, error_code ec) {
    if (!ec && !c.closed_) c.expired();
  }));
}

void HttpConnection::expired() {
  // The timer was armed again meanwhile.
  if (deadline_.expiry() > std::chrono::steady_clock::now()) return;
  if (exchange_) return;
  if (!reader_.started() || closing_) return close();
  fail_with(408, head_seen_ ? "the body did not come in time" : "the head did not come in time");
}

// Reads. A read stays pending while an answer is being made, to notice a client that leaves.
void HttpConnection::read() {
  if (reading_ || closed_ || paused_ || (exchange_ && pending_.size() >= kAhead)) return;
  socket_.async_read_some(asio::buffer(piece_),
                          guarded([](HttpConnection& c, error_code ec, size_t n) {
                            c.reading_ = false;
                            c.on_read(ec, n);
                          }));
  reading_ = true;
}

void HttpConnection::on_read(error_code ec, size_t n) {
  if (closed_) return;
  if (ec) {
    // A complete answer is still sent to a client that closed only its own side.
    if (finished_ && ec == asio::error::eof && !lingering_) {
      closing_ = true;
      return;
    }
    return close();
  }
  if (closing_) {  // the answer is being sent; further input is discarded
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
    if (fresh && reader_.started()) {
      place_.set(Places::Stage::kHead);
      arm(server_.limits_.header_time);
    }
    if (reader_.state() == HttpReader::State::kBad)
      return fail_with(reader_.status(), reader_.reason());
    if (reader_.state() == HttpReader::State::kHead) return;
    if (!std::exchange(head_seen_, true) && !head_done()) return;
    count_body();
    if (reader_.state() == HttpReader::State::kDone) dispatch();
  }
}

// Handles a complete head. Returns false if the request was refused.
bool HttpConnection::head_done() {
  place_.set(Places::Stage::kRequest);
  reader_.request().peer = peer_;
  if (place_.of(server_.kept_) && !server_.handler_.vital(reader_.request())) {
    refuse();
    return false;
  }
  if (std::optional<HttpReply> no = server_.handler_.refuse(reader_.request())) {
    const bool whole = reader_.state() == HttpReader::State::kDone;
    ++requests_;
    no->close = no->close || !whole || !reader_.request().keep_alive || !may_stay();
    put(http_text(*no, reader_.request().method == "HEAD"));
    finish(!no->close);
    return false;
  }
  if (reader_.state() == HttpReader::State::kDone) return true;
  arm(server_.limits_.time_of_body(reader_.length()));
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
  for (; !server_.paused_.empty(); server_.paused_.pop_front())
    if (const auto c = server_.paused_.front().lock())
      patiently([&] {
        asio::post(server_.io_, c->guarded([](HttpConnection& paused) { paused.resume(); }));
      });
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
  reader_.request().peer = peer_;
  HttpReply reply = server_.handler_.broken(status, reason, reader_.request());
  reply.close = true;
  put(http_text(reply, false));
  finish(false);
}

// Queues bytes, which are sent at the end of this turn of the event loop with everything else of
// the turn. If it throws, nothing is sent.
void HttpConnection::put(std::string_view bytes) {
  if (closed_) return;
  outbox_ += bytes;
  if (!writing_.empty() || flush_posted_) return;
  patiently([&] {
    asio::post(server_.io_, guarded([](HttpConnection& c) {
                 c.flush_posted_ = false;
                 c.flush();
               }));
  });
  flush_posted_ = true;
}

void HttpConnection::flush() {
  if (closed_ || !writing_.empty()) return;
  if (outbox_.empty()) return written({});
  writing_.swap(outbox_);
  stall_.expires_after(server_.limits_.write_time);
  patiently([&] {
    stall_.async_wait(guarded([](HttpConnection& c, error_code ec) {
      if (!ec && !c.writing_.empty()) c.close();
    }));
  });
  patiently([&] {
    asio::async_write(socket_, asio::buffer(writing_),
                      guarded([](HttpConnection& c, error_code ec, size_t) {
                        c.writing_.clear();
                        c.stall_.cancel();
                        c.written(ec);
                      }));
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
  place_.set(Places::Stage::kIdle);
  arm(server_.limits_.idle_time);
  process();
  read();
}

void HttpConnection::finish(bool keep) {
  const auto self = shared_from_this();
  exchange_.reset();
  place_.set(Places::Stage::kRequest);
  release_body();
  finished_ = true;
  closing_ = closing_ || !keep;
  put("");
}

// Waits for the client to read the answer and discards its input: closing a connection with unread
// bytes would lose the answer.
void HttpConnection::linger() {
  if (std::exchange(lingering_, true)) return;
  place_.set(Places::Stage::kIdle);  // its request was answered: others get places first
  error_code ec;
  socket_.shutdown(Tcp::socket::shutdown_send, ec);
  arm(server_.limits_.linger_time);
  paused_ = false;
  read();
}

void HttpConnection::close() noexcept {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  error_code ec;
  place_.leave();
  threw(server_.handler_, [&] {
    deadline_.cancel();
    stall_.cancel();
  });
  socket_.close(ec);
  threw(server_.handler_, [&] { release_body(); });
  server_.connections_.erase(self);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost();
}

void HttpConnection::give_up() noexcept {
  if (!closed_ && outbox_.empty() && writing_.empty()) say_last_words(socket_.native_handle());
  close();
}

// Called when the server ends: the handler is not called any more.
void HttpConnection::forget() noexcept {
  closed_ = true;
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->forget();
}

bool HttpConnection::unread() const {
  error_code ec;
  return socket_.available(ec) > 0;
}

// Drains: closes a connection between two requests, which clients expect; a client that has not
// asked yet gets an answer.
void HttpConnection::drain(bool last) {
  if (exchange_ || finished_ || closing_) return;
  if (requests_ > 0 && !reader_.started()) return close();
  if (last) fail_with(503, "the server is shutting down");
}

// Operations that Asio still holds are destroyed with io_, without being called.
AsioServer::~AsioServer() {
  stop();
  for (const auto& c : connections_) c->forget();
}

// Runs the event loop. Handlers catch their exceptions; one that arrives here is Asio's own (no
// memory to wait with), and the listener may have stopped waiting.
void AsioServer::run() {
  while (threw(handler_, [&] { io_.run(); })) {
    if (!acceptor_.is_open()) continue;
    error_code ec;
    acceptor_.cancel(ec);
    patiently([&] { accept(); });
  }
}

void AsioServer::stop() {
  stopped_ = true;
  io_.stop();
}

void AsioServer::post(std::function<void()> work) {
  if (stopped_) return;
  const auto kept = std::make_shared<std::function<void()>>(std::move(work));
  patiently([&] {
    asio::post(io_, [this, kept] {
      if (!stopped_) threw(handler_, *kept);
    });
  });
}

uint16_t AsioServer::listen(const std::string& host, uint16_t port) {
  error_code ec;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec)
    fail("--host {}: {}; expected an address such as 127.0.0.1", printable(host), ec.message());
  const Tcp::endpoint endpoint(address, port);
  protocol_ = endpoint.protocol();
  acceptor_.open(protocol_, ec);
  if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor_.bind(endpoint, ec);
  if (!ec) acceptor_.listen(kBacklog, ec);
  if (!ec) acceptor_.non_blocking(true, ec);
  if (ec) fail("cannot listen on {} port {}: {}", printable(host), port, ec.message());
  accept();
  return acceptor_.local_endpoint().port();
}

// Accepts a client; returns a descriptor, or -1 and errno. Asio's own accept would silently close
// it if memory is short.
int AsioServer::next_client() {
  return ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

void AsioServer::accept() {
  acceptor_.async_wait(Tcp::acceptor::wait_read, [this](error_code ec) {
    if (stopped_ || ec == asio::error::operation_aborted || !acceptor_.is_open()) return;
    const int client = next_client();
    if (client >= 0) take(client);
    if (client >= 0 || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return accept();
    retry_.expires_after(HttpTime(50));  // no descriptors left: tries again later
    retry_.async_wait([this](error_code e) {
      if (!e && !stopped_ && acceptor_.is_open()) accept();
    });
  });
}

// Returns a place for a connection. If all are taken, one without a running request makes room.
Places* AsioServer::free_place() {
  for (Places* p : {&usual_, &kept_}) {
    if (HttpConnection* const c = p->full() ? p->to_give_way() : nullptr; c != nullptr) c->close();
    if (!p->full()) return p;
  }
  return told_.full() ? nullptr : &told_;
}

void AsioServer::take(int client) {
  Places* place = nullptr;
  std::shared_ptr<HttpConnection> c;
  const bool failed = threw(handler_, [&] {
    place = free_place();
    if (place == nullptr) return;
    c = std::make_shared<HttpConnection>(*this, *place);
    connections_.insert(c);
    c->adopt(protocol_, client);
  });
  if (place != nullptr && !failed)
    return c->guard([&] { place == &told_ ? c->refuse() : c->start(); });
  if (failed) say_last_words(client);
  ::close(client);
  if (c != nullptr) c->close();
}

void AsioServer::after(HttpTime time, std::function<void()> work) {
  const auto timer = std::make_shared<asio::steady_timer>(io_, time);
  timer->async_wait([this, timer, work = std::move(work)](error_code ec) {
    if (!ec && !stopped_) threw(handler_, work);
  });
}

void AsioServer::on_signal(std::function<void()> work) {
  error_code ec;
  signals_.add(SIGTERM, ec);
  signals_.add(SIGINT, ec);
  signals_.async_wait([this, work = std::move(work)](error_code e, int) {
    if (e || stopped_) return;
    threw(handler_, work);
    patiently([&] { on_signal(work); });
  });
}

bool AsioServer::drain(bool last) {
  draining_ = true;
  const auto holds = [&](const auto& c) { return c->holds_listener(last); };
  if (std::none_of(connections_.begin(), connections_.end(), holds)) close_listener();
  const bool told = last || !acceptor_.is_open();
  for (const auto& c : all()) c->guard([&] { c->drain(told); });
  return connections_.empty() && !acceptor_.is_open();
}

void AsioServer::close_listener() {
  if (!acceptor_.is_open()) return;
  for (size_t i = 0; i < 2 * kBacklog; ++i) {
    const int client = next_client();
    if (client < 0) break;
    take(client);
  }
  error_code ec;
  acceptor_.close(ec);
}

HttpCounts AsioServer::counts() const {
  HttpCounts n;
  for (const auto& c : connections_) ++(c->active() ? n.active : n.idle);
  return n;
}

}  // namespace

std::unique_ptr<HttpServer> HttpServer::make(const HttpLimits& limits, HttpHandler& handler) {
  return std::make_unique<AsioServer>(limits, handler);
}

}  // namespace moebius
