// SPDX-License-Identifier: Apache-2.0
// HTTP/1.x, without exposing the library that does it (Boost: Asio in http.cpp, Beast in
// http_parser.cpp). Two parts: HttpReader turns bytes into requests and is free of sockets;
// HttpServer owns one event thread, on which every function of a handler runs.
//
// What is accepted is less than RFC 9112 allows: one Host, one length, no folded headers, no
// trailers, requests of a connection one after another. Everything a stranger sends is bounded.
// What a handler or a posted function throws ends one exchange at most, and is counted.
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
  size_t header = 16 << 10;  // one of them
  size_t headers = 32 << 10;
  size_t header_count = 100;
  size_t body = 8 << 20;
  size_t bodies = 64 << 20;   // of all requests, read and not dropped; then reading pauses
  size_t connections = 1024;  // when full, the one longest idle goes
  size_t kept = 16;           // more, for vital requests alone
  size_t requests = 10000;    // per connection
  size_t unsent = 1 << 20;    // of a stream
  HttpTime header_time{10'000};
  HttpTime body_time{10'000};  // and a second more per body_rate bytes
  HttpTime body_most{60'000};  // in all
  size_t body_rate = 16 << 10;
  HttpTime first_time{10'000};  // for the first byte of a connection
  HttpTime idle_time{75'000};   // between two requests
  HttpTime write_time{60'000};  // of a client that does not read
  HttpTime linger_time{2'000};  // to read an answer before the connection is torn down

  HttpTime time_of_body(std::optional<uint64_t> length) const;
};

using HttpField = std::pair<std::string, std::string>;

struct HttpRequest {
  std::string method, target;
  int version = 11;  // 10 or 11
  std::vector<HttpField> fields;
  std::string body;
  std::string peer;  // address of the client
  bool keep_alive = true;

  // The first of that name (whatever its case), or null.
  const std::string* find(std::string_view name) const;
  std::string_view path() const;  // the target up to its query
};

struct HttpReply {
  int status = 200;
  std::vector<HttpField> fields;  // without length and connection, which the server writes
  std::string body;
  bool close = false;
};
std::string_view http_reason(int status);
// Status line and fields; without a length, `chunked` or up to the end of the connection.
std::string http_head(const HttpReply& reply, std::optional<size_t> length, bool chunked);
std::string http_text(const HttpReply& reply, bool head_only);  // the whole, with its length

// What the system is to do for a client's socket: at once, and not for ever.
void set_socket_limits(int socket, HttpTime write_time);
// Answers 503 where there is no memory to say anything else: without a queue and without waiting, so that
// a client that does not read misses it.
void say_last_words(int socket) noexcept;

// What reads heads and the framing of bodies; the reader decides what is put to it, and in which
// pieces.
class HttpParser {
 public:
  static std::unique_ptr<HttpParser> make(HttpRequest& into);
  virtual ~HttpParser() = default;
  struct Taken {
    size_t bytes = 0;
    std::string error;  // empty: none
    bool bad_version = false;
  };
  virtual Taken put(std::string_view bytes) = 0;
  virtual bool head_done() const = 0;
  virtual bool keep_alive() const = 0;
  uint64_t chunk = 0;  // length of the chunk whose line was read last
};

// Bytes to requests. How the bytes are cut changes nothing.
class HttpReader {
 public:
  enum class State : uint8_t { kHead, kBody, kDone, kBad };
  explicit HttpReader(const HttpLimits& limits);  // they must live longer
  ~HttpReader();

  // Takes bytes up to the end of the head, or of the request, or to what makes it bad; says how
  // many. What follows belongs to the next request.
  size_t push(std::string_view bytes);
  State state() const { return state_; }
  bool started() const { return started_; }
  HttpRequest& request() { return request_; }
  bool expects_continue() const { return continue_; }
  std::optional<uint64_t> length() const { return length_; }  // none: in chunks
  // Of a bad request: what to answer.
  int status() const { return status_; }
  const std::string& reason() const { return reason_; }
  void next();  // forgets the request

 private:
  size_t take_head(std::string_view bytes);
  size_t take_body(std::string_view bytes);
  size_t take_chunks(std::string_view bytes);
  void head_complete();
  void check_fields();
  void check_lengths(size_t lengths, size_t codings);
  void give_parser(std::string_view bytes);
  void find_origin();
  bool bad(int status, std::string reason);

  const HttpLimits& limits_;
  State state_ = State::kHead;
  bool started_ = false, continue_ = false, chunked_ = false;
  bool skipped_ = false;  // an empty line before the request line
  std::optional<uint64_t> length_;
  HttpRequest request_;
  std::string head_;                           // so far
  size_t line_begin_ = 0, headers_begin_ = 0;  // of the line that is being read, of the second
  size_t lines_ = 0;
  std::string line_;             // of a chunk, so far
  uint64_t left_ = 0, sum_ = 0;  // bytes of the body, of this chunk: still to come; announced
  bool first_chunk_ = true, last_chunk_ = false;
  int status_ = 0;
  std::string reason_;
  std::unique_ptr<HttpParser> parser_;
};

// A request that waits for its answer. Used on the event thread only. After the client left, what
// is written goes nowhere.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual HttpRequest& request() = 0;
  virtual bool open() const = 0;
  virtual void drop_body() = 0;  // it was understood
  virtual void reply(HttpReply reply) = 0;
  // A stream: its head, then pieces (each becomes one chunk), then its end. Pieces of one turn of
  // the event loop leave in one write.
  virtual void begin(HttpReply head) = 0;
  virtual void send(std::string_view piece) = 0;
  virtual void end() = 0;
  // What worked on it threw: 500 where nothing was sent, else the connection is closed.
  virtual void fail() noexcept = 0;
  std::function<void()> on_gone;  // before the end the client left, or it failed
};
using HttpExchangePtr = std::shared_ptr<HttpExchange>;

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The head is complete: an answer refuses the request before its body is read.
  virtual std::optional<HttpReply> refuse(const HttpRequest& head) = 0;
  virtual void serve(HttpExchangePtr exchange) = 0;
  // The head is that of a request for which places are kept.
  virtual bool vital(const HttpRequest& head) = 0;
  // The answer to what is no request, and to refused connections. `from` has its peer and what fields
  // could be read.
  virtual HttpReply broken(int status, const std::string& reason, const HttpRequest& from) = 0;
  // A function on the event thread threw.
  virtual void failed(std::string_view what) noexcept = 0;
};

// Runs `work`; true: it threw, and the handler was told.
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

struct HttpCounts {
  size_t active = 0, idle = 0;  // connections with a request, and without
};

class HttpServer {
 public:
  static std::unique_ptr<HttpServer> make(const HttpLimits& limits, HttpHandler& handler);
  virtual ~HttpServer() = default;

  // Returns the port. Throws Error.
  virtual uint16_t listen(const std::string& host, uint16_t port) = 0;
  virtual void run() = 0;                                             // until stop
  virtual void post(std::function<void()> work) = 0;                  // from any thread
  virtual void after(HttpTime time, std::function<void()> work) = 0;  // event thread
  // SIGTERM and SIGINT, each time one comes.
  virtual void on_signal(std::function<void()> work) = 0;
  // Closes connections between two requests, and others when answered. New ones are still taken,
  // until the last answer to those that were there has left; then the listener closes, behind
  // whoever the system has queued for it. Those that have not asked are told 503. `last`: does not
  // wait for requests that are still coming in. To be called again until it says true: nobody is
  // left.
  virtual bool drain(bool last) = 0;
  // From any thread. Nothing that was posted, or waits for its time, runs any more.
  virtual void stop() = 0;
  virtual HttpCounts counts() const = 0;
};

}  // namespace moebius
