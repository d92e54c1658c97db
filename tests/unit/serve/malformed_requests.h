// SPDX-License-Identifier: Apache-2.0
// Bytes that are no request, with the status that answers them; "more": nothing does before its
// time is up. Each closes its connection.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace moebius::test {

inline std::vector<std::pair<std::string, const char*>> malformed_requests() {
  const std::string get = "GET / HTTP/1.1\r\n", post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  return {
      {get + "\r\n", "400"},                        // no Host
      {get + "Host: a\r\nHost: a\r\n\r\n", "400"},  // two
      {get + "Host: a\r\nhost: b\r\n\r\n", "400"},
      {post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", "400"},
      {post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", "400"},
      {post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", "400"},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {post + "Transfer-Encoding: gzip\r\n\r\n", "501"},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"},
      {post + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "501"},
      {post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"},
      {"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {post + "Content-Length: \r\n\r\n", "400"},
      {post + "Content-Length: -1\r\n\r\n", "400"},
      {post + "Content-Length: +1\r\n\r\nx", "400"},
      {post + "Content-Length: 1, 1\r\n\r\nx", "400"},
      {post + "Content-Length: 0x1\r\n\r\nx", "400"},
      {post + "Content-Length: 1 1\r\n\r\nx", "400"},
      {post + "Content-Length: 1.0\r\n\r\nx", "400"},
      {post + "Content-Length: 18446744073709551616\r\n\r\n", "400"},
      {post + "Content-Length: 18446744073709551615\r\n\r\n", "413"},
      {post + "Content-Length: 9000000\r\n\r\n", "413"},
      {post + "\r\n", "411"},
      {"PUT / HTTP/1.1\r\nHost: a\r\n\r\n", "411"},
      {chunked + "-2\r\nab\r\n0\r\n\r\n", "400"},
      {chunked + "+2\r\nab\r\n0\r\n\r\n", "400"},
      {chunked + "0x2\r\nab\r\n0\r\n\r\n", "400"},
      {chunked + "g\r\nab\r\n0\r\n\r\n", "400"},
      {chunked + "\r\nab\r\n0\r\n\r\n", "400"},
      {chunked + " 2\r\nab\r\n0\r\n\r\n", "400"},
      {chunked + "2\r\nabc\r\n0\r\n\r\n", "400"},  // longer than announced
      {chunked + "3\r\nab\r\n0\r\n\r\n", "400"},   // shorter
      {chunked + "2\nab\n0\n\n", "more"},          // waits for a line, and times out
      {chunked + "fffffffffffffffff\r\n", "400"},  // no number of 64 bits
      {chunked + "ffffffffffffffff\r\n", "413"},
      {chunked + "800001\r\n", "413"},
      {chunked + std::string(300, '0') + "1\r\na\r\n0\r\n\r\n", "400"},
      {chunked + "1;" + std::string(300, 'x') + "\r\na\r\n0\r\n\r\n", "400"},
      {chunked + "0\r\nTrailer: x\r\n\r\n", "400"},
      {get + "Host: a\r\nExpect: coffee\r\n\r\n", "417"},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505"},
      {"GET / HTTP/0.9\r\nHost: a\r\n\r\n", "505"},
      {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", "505"},
      {"GET / HTTP/1\r\nHost: a\r\n\r\n", "505"},
      {"GET / http/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET / FTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET /\r\nHost: a\r\n\r\n", "400"},
      {"GET\r\nHost: a\r\n\r\n", "400"},
      {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"\r\n GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "505"},
      {"GE(T / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET a HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET http://a/health HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET / HTTP/1.1\nHost: a\n\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a\n\r\n", "400"},
      {"GET / HTTP/1.1\rHost: a\r\n\r\n", "400"},
      {get + "Host: a\r\nX : b\r\n\r\n", "400"},
      {get + "Host: a\r\n X: b\r\n\r\n", "400"},
      {get + "Host: a\r\nX: b\r\n c\r\n\r\n", "400"},
      {get + "Host: a\r\n: b\r\n\r\n", "400"},
      {get + "Host: a\r\nX\r\n\r\n", "400"},
      {get + "Host: a\r\nX(: b\r\n\r\n", "400"},
      {get + std::string("Host: a\r\nX: b\0c\r\n\r\n", 19), "400"},
      {get + "Host: a\r\nX: b\x01\r\n\r\n", "400"},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), "400"},  // TLS
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
      {"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
      {get + "Host: a\r\nX: b\x7f\r\n\r\n", "400"},
      {get + "Host: a\r\n\tX: b\r\n\r\n", "400"},
      {get + "Host: a\r\nX@: b\r\n\r\n", "400"},
      {get + "Host: a\r\n\xc3\xa4: b\r\n\r\n", "400"},
      {get + "Host : a\r\n\r\n", "400"},
      {"GET / HTTP/11\r\nHost: a\r\n\r\n", "505"},
      {"GET / HTTP/1.11\r\nHost: a\r\n\r\n", "505"},
      {"GET / HTTP/-1.1\r\nHost: a\r\n\r\n", "505"},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1e3\r\n\r\n", "400"},
      {post + "Content-Length: 1\r\nTransfer-Encoding: gzip\r\n\r\n", "400"},
      {post + "Transfer-Encoding: identity\r\n\r\n", "501"},
      {post + "Transfer-Encoding: \r\n\r\n", "501"},
      {chunked + "2 \r\nab\r\n0\r\n\r\n", "400"},
      {chunked + "00\r\n\r", "more"},
  };
}

}  // namespace moebius::test
