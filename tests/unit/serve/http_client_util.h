// SPDX-License-Identifier: Apache-2.0
// A client that speaks HTTP byte by byte.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace moebius::test {

struct Response {
  int status = 0;                             // 0: none came
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;
  bool closed = false;  // by the server, after it
  Json json() const { return parse_json(body, "body"); }
  std::vector<std::string> events() const;  // of a stream, without "data: "
};

class Client {
 public:
  explicit Client(uint16_t port, int seconds = 20, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  bool send(std::string_view bytes);
  Response read(bool head_only = false);
  std::string read_some();  // what is there, at least a byte; empty: closed or too late
  bool at_end();            // the server has closed
  void half_close();
  void reset();  // closes with RST
  int descriptor() const { return fd_; }

 private:
  bool fill();
  int fd_ = -1;
  std::string buffer_;
  bool eof_ = false;
};

std::string get(std::string_view path, std::string_view more = "");
std::string post(std::string_view path, std::string_view body, std::string_view more = "");

// The value of a metric, named without "moebius_" and without the label model_name; empty: none.
std::string metric_of(const std::string& metrics, const std::string& line);

// Waits until a condition holds; false after ten seconds.
bool eventually(const std::function<bool()>& condition);

}  // namespace moebius::test
