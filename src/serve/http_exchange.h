// SPDX-License-Identifier: Apache-2.0
// Holds one request of a connection and the bytes of its answer. Event thread only.
#pragma once
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "base/out_of_memory.h"
#include "serve/http.h"

namespace moebius {

inline constexpr const char* kHttpFailed = "an unexpected error; the server's log has more";

template <class Connection>
class HttpExchangeOf final : public HttpExchange {
 public:
  HttpExchangeOf(std::shared_ptr<Connection> connection, HttpRequest request)
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
    connection_->put(http_text(reply, request_.method == "HEAD"));
    begun_ = true;
    leave(keep);
  }
  void begin(HttpReply head) override {
    if (!connection_) return;
    chunked_ = request_.version == 11;
    keep_ = chunked_ && keeps(head);
    head.close = !keep_;
    connection_->put(http_head(head, std::nullopt, chunked_));
    begun_ = true;
  }
  void send(std::string_view piece) override {
    if (!connection_ || piece.empty() || request_.method == "HEAD") return;
    if (chunked_)  // written as one piece, so that a chunk is complete
      connection_->put(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
    else
      connection_->put(piece);
    if (connection_->overfull()) std::shared_ptr(connection_)->close();
  }
  void end() override {
    if (!connection_) return;
    if (chunked_ && request_.method != "HEAD") patiently([&] { connection_->put("0\r\n\r\n"); });
    leave(keep_);
  }
  void fail() noexcept override {
    const auto connection = connection_;
    if (!connection) return;
    const auto gone = std::exchange(on_gone, nullptr);
    if (begun_ || threw(connection->handler(), [&] {
          HttpReply sorry = connection->handler().broken(500, kHttpFailed, request_);
          sorry.close = true;
          reply(std::move(sorry));
        }))
      connection->give_up();
    if (gone) threw(connection->handler(), gone);
  }
  void lost() noexcept {
    const auto connection = std::exchange(connection_, nullptr);
    const auto gone = std::exchange(on_gone, nullptr);
    if (gone) threw(connection->handler(), gone);
  }
  void forget() noexcept {
    on_gone = nullptr;
    connection_.reset();
  }

 private:
  bool keeps(const HttpReply& reply) const {
    return request_.keep_alive && !reply.close && connection_->may_stay();
  }
  void leave(bool keep) {
    on_gone = nullptr;
    std::exchange(connection_, nullptr)->finish(keep);
  }
  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  bool chunked_ = false, keep_ = false, begun_ = false;
};

}  // namespace moebius
