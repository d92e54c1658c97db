// SPDX-License-Identifier: Apache-2.0
// HTTP/1.x, without exposing the library that does it (Boost: Asio in http.cpp, Beast in
// http_parser.cpp). Two parts: HttpReader turns bytes into requests and is free of sockets;
// HttpServer owns one event thread, on which every function of a handler runs.
//
// Less is accepted than RFC 9112 allows: one Host, one length, no folded headers, no trailers,
// requests of a connection one after another. All input is limited. An exception of a handler or a
// posted function ends at most one exchange, and is counted.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius {

using HttpTime = std::chrono::milliseconds;

struct HttpLimits {
  size_t request_line = 8 << 10;
  size_t header = 16 << 10;  // bytes of one header field
  size_t headers = 32 << 10;
  size_t header_count = 100;
  size_t body = 8 << 20;
  size_t bodies = 64 << 20;  // bytes of all bodies that are in memory; reading pauses beyond it
  // Most connections; beyond them the one that is idle longest is closed.
  size_t connections = 1024;
  size_t kept = 16;         // further connections for vital requests only
  size_t requests = 10000;  // most requests per connection
  size_t unsent = 1 << 20;  // most bytes of a stream that the client has not read
  HttpTime header_time{10'000};
  HttpTime body_time{10'000};  // time for a body, plus a second per body_rate bytes
  HttpTime body_most{60'000};  // most time for any body
  size_t body_rate = 16 << 10;
  HttpTime first_time{10'000};  // time until the first byte of a connection
  HttpTime idle_time{75'000};   // time between two requests
  HttpTime write_time{60'000};  // time after which a client that does not read is dropped
  // Time for the client to read the answer before the connection is closed.
  HttpTime linger_time{2'000};

  HttpTime time_of_body(std::optional<uint64_t> length) const;
};

using HttpField = std::pair<std::string, std::string>;

struct HttpRequest {
  std::string method, target;
  int version = 11;  // 10 for HTTP/1.0, 11 for HTTP/1.1
  std::vector<HttpField> fields;
  std::string body;
  std::string peer;  // address of the client
  bool keep_alive = true;

  // Returns the first field of that name, ignoring case, or null.
  const std::string* find(std::string_view name) const;
  std::string_view path() const;  // the target without its query
};

struct HttpReply {
  int status = 200;
  // Header fields without Content-Length and Connection, which the server adds.
  std::vector<HttpField> fields;
  std::string body;
  bool close = false;
};
std::string_view http_reason(int status);
// Returns status line and fields. Without a length the body is `chunked`, or ends with the
// connection.
std::string http_head(const HttpReply& reply, std::optional<size_t> length, bool chunked);
// Returns the whole reply, with its length.
std::string http_text(const HttpReply& reply, bool head_only);

// Sets options of a client's socket: no delay, a bounded send buffer, and timeouts for clients that
// are gone.
void set_socket_limits(int socket, HttpTime write_time);
// Sends 503 when there is no memory for any other answer: without a queue and without waiting, so a
// client that does not read misses it.
void say_last_words(int socket) noexcept;

// Parses heads and the framing of bodies; HttpReader decides which bytes it gets, and in which
// pieces.
class HttpParser {
 public:
  static std::unique_ptr<HttpParser> make(HttpRequest& into);
  virtual ~HttpParser() = default;
  struct Taken {
    size_t bytes = 0;
    std::string error;  // empty: no error
    bool bad_version = false;
  };
  virtual Taken put(std::string_view bytes) = 0;
  virtual bool head_done() const = 0;
  virtual bool keep_alive() const = 0;
  uint64_t chunk = 0;  // length of the chunk whose line was parsed last
};

// Turns bytes into requests. Results do not depend on how bytes are divided over calls.
class HttpReader {
 public:
  enum class State : uint8_t { kHead, kBody, kDone, kBad };
  explicit HttpReader(const HttpLimits& limits);  // the limits must outlive the reader
  ~HttpReader();

  // Consumes bytes up to the end of the head, of the request, or to what makes it invalid, and
  // returns how many. The bytes after that belong to the next request.
  size_t push(std::string_view bytes);
  State state() const { return state_; }
  bool started() const { return started_; }
  HttpRequest& request() { return request_; }
  bool expects_continue() const { return continue_; }
  // Length of the body; unset: the body is in chunks.
  std::optional<uint64_t> length() const { return length_; }
  // Status and reason of the answer, in state kBad.
  int status() const { return status_; }
  const std::string& reason() const { return reason_; }
  void next();  // prepares for the next request of the connection

 private:
  size_t take_head(std::string_view bytes);
  size_t take_body(std::string_view bytes);
  size_t take_chunks(std::string_view bytes);
  void head_complete();
  void check_fields();
  void check_lengths(size_t lengths, size_t codings);
  void give_parser(std::string_view bytes);
  void find_origin();
  void bad(int status, std::string reason);

  const HttpLimits& limits_;
  State state_ = State::kHead;
  bool started_ = false, continue_ = false, chunked_ = false;
  bool skipped_ = false;  // true: an empty line before the request line was skipped
  std::optional<uint64_t> length_;
  HttpRequest request_;
  std::string head_;  // the bytes of the head so far
  // Offsets in head_ of the current line, and of the second line.
  size_t line_begin_ = 0, headers_begin_ = 0;
  size_t lines_ = 0;
  std::string line_;  // the bytes of a chunk's line so far
  // left_: bytes of the body or chunk that are still to come; sum_: bytes announced in all.
  uint64_t left_ = 0, sum_ = 0;
  bool first_chunk_ = true, last_chunk_ = false;
  int status_ = 0;
  std::string reason_;
  std::unique_ptr<HttpParser> parser_;
};

// A request that waits for its answer. Used on the event thread only. After the client has left,
// output is discarded.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual HttpRequest& request() = 0;
  virtual bool open() const = 0;
  virtual void drop_body() = 0;  // releases the body's memory once it was parsed
  virtual void reply(HttpReply reply) = 0;
  // Answer with a stream: begin() sends the head, each send() one chunk, end() the end. All output
  // of one turn of the event loop is sent in one write.
  virtual void begin(HttpReply head) = 0;
  virtual void send(std::string_view piece) = 0;
  virtual void end() = 0;
  // Called when the code that answers threw: sends 500 if nothing was sent yet, else closes the
  // connection.
  virtual void fail() noexcept = 0;
  // Called if the client left, or the exchange failed, before the end.
  std::function<void()> on_gone;
};
using HttpExchangePtr = std::shared_ptr<HttpExchange>;

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called when the head is complete; a returned reply refuses the request before its body is read.
  virtual std::optional<HttpReply> refuse(const HttpRequest& head) = 0;
  virtual void serve(HttpExchangePtr exchange) = 0;
  // Returns true for requests for which `kept` connections are reserved.
  virtual bool vital(const HttpRequest& head) = 0;
  // Returns the reply to an invalid request or a refused connection. `from` has the client's
  // address and the fields that could be read.
  virtual HttpReply broken(int status, const std::string& reason, const HttpRequest& from) = 0;
  // Called when a function on the event thread threw.
  virtual void failed(std::string_view what) noexcept = 0;
};

// Runs `work`; if it throws, calls handler.failed() and returns true.
template <class Work>
bool threw(HttpHandler& handler, Work&& work) noexcept {
  try {
    work();
    return false;
  } catch (const std::exception& e) {
    handler.failed(e.what());
  } catch (...) {
    handler.failed("not a std::exception");
  }
  return true;
}

// Runs `work` for an exchange; if it throws, only that exchange fails.
template <class Work>
void guard(HttpHandler& handler, const HttpExchangePtr& exchange, Work&& work) {
  if (threw(handler, work)) exchange->fail();
}

struct HttpCounts {
  size_t active = 0, idle = 0;  // connections with and without a request
};

class HttpServer {
 public:
  static std::unique_ptr<HttpServer> make(const HttpLimits& limits, HttpHandler& handler);
  virtual ~HttpServer() = default;

  // Opens the port for clients and returns its number; port 0: any free one. Throws Error.
  virtual uint16_t listen(const std::string& host, uint16_t port) = 0;
  virtual void run() = 0;  // serves; returns after stop()
  // Runs `work` on the event thread. Thread-safe.
  virtual void post(std::function<void()> work) = 0;
  // Runs `work` on the event thread after `time`. Only for the event thread.
  virtual void after(HttpTime time, std::function<void()> work) = 0;
  // Calls `work` on the event thread for each SIGTERM and SIGINT.
  virtual void on_signal(std::function<void()> work) = 0;
  // Closes idle connections, and others when they are answered. New connections are accepted, and
  // told 503, until the last answer to earlier ones was sent; then the listener closes after those
  // queued by the system. `last`: does not wait for requests that are still being received. Call
  // repeatedly until it returns true: no connection is left.
  virtual bool drain(bool last) = 0;
  // Stops run(). Thread-safe. Functions that were posted or are waiting for their time do not run
  // any more.
  virtual void stop() = 0;
  virtual HttpCounts counts() const = 0;
};

}  // namespace moebius
