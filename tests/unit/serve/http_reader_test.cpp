// SPDX-License-Identifier: Apache-2.0
// Bytes to requests: what is refused and with which status, limits on both sides, and that the way
// the bytes are cut changes nothing.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "serve/http.h"
#include "unit/serve/malformed_requests.h"

namespace moebius::http_reader_test {
namespace {

// "200 METHOD target body" or "status"; what is left unread after "|".
std::string outcome(const HttpLimits& limits, std::string_view bytes, size_t piece) {
  HttpReader reader(limits);
  std::string pending;
  while (!bytes.empty() || !pending.empty()) {
    if (reader.state() == HttpReader::State::kBad) return std::to_string(reader.status());
    if (reader.state() == HttpReader::State::kDone) break;
    if (pending.empty()) {
      pending = bytes.substr(0, piece);
      bytes.remove_prefix(pending.size());
    }
    pending.erase(0, reader.push(pending));
  }
  if (reader.state() == HttpReader::State::kBad) return std::to_string(reader.status());
  if (reader.state() != HttpReader::State::kDone) return "more";
  const HttpRequest& r = reader.request();
  return fmt::format("200 {} {} {}|{}{}", r.method, r.target, r.body, pending, bytes);
}

std::string whole_and_cut(std::string_view bytes, const HttpLimits& limits = {}) {
  const std::string whole = outcome(limits, bytes, bytes.size());
  for (const size_t piece : {1u, 2u, 3u, 7u, 64u})
    EXPECT_EQ(whole, outcome(limits, bytes, piece))
        << bytes.substr(0, 200) << " in pieces of " << piece;
  return whole;
}

TEST(HttpReader, Requests) {
  EXPECT_EQ(whole_and_cut("GET /health HTTP/1.1\r\nHost: a\r\n\r\n"), "200 GET /health |");
  EXPECT_EQ(whole_and_cut("GET / HTTP/1.0\r\nHost: a\r\n\r\nNEXT"), "200 GET / |NEXT");
  EXPECT_EQ(whole_and_cut("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcde"),
            "200 POST /x abc|de");
  EXPECT_EQ(whole_and_cut("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                          "3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\nGET"),
            "200 POST /x abcde|GET");
  EXPECT_EQ(
      whole_and_cut("POST /x HTTP/1.1\r\nhOST: a\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n"),
      "200 POST /x |");
  EXPECT_EQ(whole_and_cut("GET /a?b=c HTTP/1.1\r\nHost: a\r\nX: \t y \r\n\r\n"),
            "200 GET /a?b=c |");
  EXPECT_EQ(whole_and_cut("\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n\r\n"),
            "200 GET /health |\r\n");
}

// An empty line alone begins nothing: whoever ends a body with one is not late with the next.
TEST(HttpReader, AnEmptyLineIsNoRequest) {
  const HttpLimits limits;
  HttpReader reader(limits);
  EXPECT_EQ(reader.push("\r"), 1u);
  EXPECT_TRUE(reader.started());
  EXPECT_EQ(reader.push("\n"), 1u);
  EXPECT_FALSE(reader.started());
  EXPECT_EQ(reader.push("G"), 1u);
  EXPECT_TRUE(reader.started());
}

TEST(HttpReader, Malformed) {
  const auto cases = test::malformed_requests();
  EXPECT_GE(cases.size(), 80u);
  for (const auto& [bytes, expected] : cases) EXPECT_EQ(whole_and_cut(bytes), expected) << bytes;
}

TEST(HttpReader, LimitsOnBothSides) {
  const HttpLimits limits;
  const auto line = [](size_t n) {
    return "GET /" + std::string(n - 14, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n";
  };
  EXPECT_TRUE(outcome(limits, line(limits.request_line), 1000).starts_with("200"));
  EXPECT_EQ(whole_and_cut(line(limits.request_line + 1)), "414");
  const auto header = [](size_t n) {
    return "GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(n - 3, 'a') + "\r\n\r\n";
  };
  EXPECT_TRUE(outcome(limits, header(limits.header), 1000).starts_with("200"));
  EXPECT_EQ(whole_and_cut(header(limits.header + 1)), "431");
  const auto count = [](size_t n) {
    std::string s = "GET / HTTP/1.1\r\nHost: a\r\n";
    for (size_t i = 1; i < n; ++i) s += fmt::format("X{}: b\r\n", i);
    return s + "\r\n";
  };
  EXPECT_TRUE(outcome(limits, count(limits.header_count), 1000).starts_with("200"));
  EXPECT_EQ(whole_and_cut(count(limits.header_count + 1)), "431");
  EXPECT_EQ(whole_and_cut(count(10000)), "431");
  const auto all = [](size_t n) {  // bytes of headers, the empty line included
    std::string s = "Host: a\r\n";
    for (int i = 0; i < 3; ++i) s += "X: " + std::string(10000, 'a') + "\r\n";
    s += "Y: " + std::string(n - s.size() - 7, 'a') + "\r\n\r\n";
    return "GET / HTTP/1.1\r\n" + s;
  };
  EXPECT_TRUE(outcome(limits, all(limits.headers), 1000).starts_with("200"));
  EXPECT_EQ(whole_and_cut(all(limits.headers + 1)), "431");
  const auto body = [](size_t n) {
    return fmt::format("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", n) +
           std::string(n, 'x');
  };
  EXPECT_TRUE(outcome(limits, body(limits.body), 65536).starts_with("200"));
  EXPECT_EQ(outcome(limits, body(limits.body + 1), 65536), "413");
  const auto chunks = [](size_t n) {
    const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    return head + fmt::format("{:x}\r\n{}\r\n1\r\ny\r\n0\r\n\r\n", n - 1, std::string(n - 1, 'x'));
  };
  EXPECT_TRUE(outcome(limits, chunks(limits.body), 65536).starts_with("200"));
  EXPECT_EQ(outcome(limits, chunks(limits.body + 1), 65536), "413");
}

TEST(HttpReader, ForgetsBetweenRequests) {
  const HttpLimits limits;
  HttpReader reader(limits);
  std::string bytes =
      "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nxGET /b HTTP/1.1\r\nHost: "
      "b\r\nConnection: close\r\n\r\n";
  while (reader.state() != HttpReader::State::kDone) bytes.erase(0, reader.push(bytes));
  EXPECT_TRUE(reader.request().keep_alive);
  reader.next();
  EXPECT_FALSE(reader.started());
  while (reader.state() != HttpReader::State::kDone) bytes.erase(0, reader.push(bytes));
  EXPECT_EQ(reader.request().target, "/b");
  EXPECT_EQ(reader.request().body, "");
  EXPECT_FALSE(reader.request().keep_alive);
}

}  // namespace
}  // namespace moebius::http_reader_test
