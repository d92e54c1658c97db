// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "serve/http.h"

namespace moebius {
namespace {

constexpr std::string_view kLastWords =
    "HTTP/1.1 503 Service Unavailable\r\n"
    "Content-Type: application/json\r\n"
    "Content-Length: 114\r\n"
    "Retry-After: 1\r\n"
    "Connection: close\r\n\r\n"
    R"({"error":{"message":"the server is out of memory","type":"unavailable_error",)"
    R"("param":null,"code":"out_of_memory"}})";
static_assert(kLastWords.size() - kLastWords.find('{') == 114);

}  // namespace

void say_last_words(int socket) noexcept {
  (void)!::send(socket, kLastWords.data(), kLastWords.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void set_socket_limits(int socket, HttpTime write_time) {
  constexpr int kSendBuffer = 256 << 10;
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Without a limit, the system would buffer megabytes for a client that does not read.
  set(SOL_SOCKET, SO_SNDBUF, kSendBuffer);
  const int most = static_cast<int>(write_time.count());
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, most);
  // Probes detect a peer that vanished while nothing was being sent; the system's default starts
  // them after hours.
  const int begin = std::max(1, most / 2000);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, begin);
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, begin / 3));
}

}  // namespace moebius
