// SPDX-License-Identifier: Apache-2.0
#include "unit/serve/http_client_util.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace moebius::test {

std::string metric_of(const std::string& metrics, const std::string& line) {
  const size_t braces = std::min(line.find('{'), line.size());
  const std::string name = "\nmoebius_" + line.substr(0, braces);
  const std::string labels = braces == line.size() ? "" : line.substr(braces + 1);
  for (size_t at = 0; (at = metrics.find(name, at)) != std::string::npos; ++at) {
    const std::string all = metrics.substr(at + 1, metrics.find('\n', at + 1) - at - 1);
    std::string_view rest = std::string_view(all).substr(name.size() - 1);
    const std::string_view first = "{model_name=\"";
    if (rest.starts_with(first)) {
      rest.remove_prefix(rest.find('"', first.size()) + 1);
      if (labels.empty() ? !rest.starts_with("} ") : !rest.starts_with("," + labels + " "))
        continue;
    } else if (!rest.starts_with(line.substr(braces) + " ")) {
      continue;
    }
    return all.substr(all.rfind(' ') + 1);
  }
  return "";
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
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
  ssize_t n;
  do {  // a process that was stopped and goes on finds its call interrupted
    n = recv(fd_, piece, sizeof piece, 0);
  } while (n < 0 && errno == EINTR);
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
  if (head_only || r.status == 204 || r.status == 304) return r;
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

}  // namespace moebius::test
