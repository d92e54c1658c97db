// SPDX-License-Identifier: Apache-2.0
// Parses heads and chunks by Beast's parser.
#include <boost/beast/http/basic_parser.hpp>

#include "serve/http.h"

namespace moebius {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

class BeastParser final : public HttpParser, private http::basic_parser<true> {
 public:
  explicit BeastParser(HttpRequest& into) : into_(into) {
    header_limit(UINT32_MAX);  // the reader counts the bytes itself
    body_limit(boost::none);
  }
  Taken put(std::string_view bytes) override {
    error_code ec;
    Taken taken;
    taken.bytes = basic_parser::put(boost::asio::buffer(bytes.data(), bytes.size()), ec);
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

}  // namespace

std::unique_ptr<HttpParser> HttpParser::make(HttpRequest& into) {
  return std::make_unique<BeastParser>(into);
}

}  // namespace moebius
