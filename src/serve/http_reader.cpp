// SPDX-License-Identifier: Apache-2.0
// Reads requests, with rules that are stricter than the parser's, so that a request means the same
// to this server and to every proxy in front of it.
#include <fmt/core.h>

#include <algorithm>

#include "serve/http.h"

namespace moebius {
namespace {

constexpr size_t kChunkLine = 256;  // most bytes of a chunk's length and extensions

bool same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

bool all_digits(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string_view http_reason(int status) {
  static constexpr std::pair<int, std::string_view> kReasons[] = {
      {200, "OK"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {529, "Overloaded"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  for (const auto& [number, reason] : kReasons)
    if (number == status) return reason;
  return "Unknown";
}

std::string http_head(const HttpReply& reply, std::optional<size_t> length, bool chunked) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, http_reason(reply.status));
  for (const auto& [name, value] : reply.fields) head += fmt::format("{}: {}\r\n", name, value);
  const bool bodiless = reply.status == 204 || reply.status == 304;
  if (length && !bodiless) head += fmt::format("Content-Length: {}\r\n", *length);
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  head += reply.close ? "Connection: close\r\n\r\n" : "Connection: keep-alive\r\n\r\n";
  return head;
}

std::string http_text(const HttpReply& reply, bool head_only) {
  std::string text = http_head(reply, reply.body.size(), /*chunked=*/false);
  if (!head_only) text += reply.body;
  return text;
}

HttpTime HttpLimits::time_of_body(std::optional<uint64_t> length) const {
  const auto seconds = static_cast<int64_t>(length.value_or(body) / body_rate);
  return std::min(body_most, body_time + HttpTime(1000 * seconds));
}

const std::string* HttpRequest::find(std::string_view name) const {
  for (const auto& [key, value] : fields)
    if (same_name(key, name)) return &value;
  return nullptr;
}

std::string_view HttpRequest::path() const {
  return std::string_view(target).substr(0, target.find_first_of("?#"));
}

HttpReader::HttpReader(const HttpLimits& limits) : limits_(limits) { next(); }
HttpReader::~HttpReader() = default;

void HttpReader::next() {
  state_ = State::kHead;
  started_ = continue_ = chunked_ = last_chunk_ = skipped_ = false;
  first_chunk_ = true;
  length_.reset();
  request_ = {};
  head_.clear();
  line_.clear();
  line_begin_ = lines_ = 0;
  left_ = sum_ = 0;
  parser_ = HttpParser::make(request_);
}

// Finds the origin in a head that was not read to its end, so that the page that asks may read the
// error.
void HttpReader::find_origin() {
  constexpr std::string_view kName = "Origin";
  if (request_.find(kName) != nullptr) return;
  for (size_t at = head_.find('\n'), end = 0; at != std::string::npos; at = end) {
    end = head_.find("\r\n", ++at);
    if (end == std::string::npos) return;  // the line is not complete
    const std::string_view line = std::string_view(head_).substr(at, end++ - at);
    if (line.size() <= kName.size() || line[kName.size()] != ':' ||
        !same_name(line.substr(0, kName.size()), kName))
      continue;
    const size_t first = line.find_first_not_of(" \t", kName.size() + 1);
    if (first == std::string_view::npos) return;
    const size_t last = line.find_last_not_of(" \t");
    request_.fields.emplace_back(kName, line.substr(first, last - first + 1));
    return;
  }
}

void HttpReader::bad(int status, std::string reason) {
  if (state_ == State::kBad) return;
  if (state_ == State::kHead) find_origin();
  state_ = State::kBad;
  status_ = status;
  reason_ = std::move(reason);
}

size_t HttpReader::push(std::string_view bytes) {
  if (state_ == State::kHead) return take_head(bytes);
  if (state_ == State::kBody) return chunked_ ? take_chunks(bytes) : take_body(bytes);
  return 0;
}

// Takes bytes one by one, so that every limit is met at the same byte however the input was cut.
size_t HttpReader::take_head(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    started_ = true;
    const bool after_cr = !head_.empty() && head_.back() == '\r';
    if ((c == '\n') != after_cr) {
      bad(400, "a line of the head does not end in CR LF");
      return i + 1;
    }
    head_ += c;
    const size_t line = head_.size() - line_begin_;
    if (lines_ == 0 && line > limits_.request_line + 2)
      bad(414, fmt::format("the request line is longer than {} bytes", limits_.request_line));
    else if (lines_ > 0 && line > limits_.header + 2)
      bad(431, fmt::format("a header is longer than {} bytes", limits_.header));
    else if (lines_ > 0 && head_.size() - headers_begin_ > limits_.headers)
      bad(431, fmt::format("the headers are longer than {} bytes", limits_.headers));
    else if (line == 1 && lines_ > 0 && (c == ' ' || c == '\t'))
      bad(400, "a header is folded over several lines");
    if (state_ == State::kBad) return i + 1;
    if (c != '\n') continue;
    if (line == 2 && lines_ == 0 && !skipped_) {  // some clients send an empty line after a body
      skipped_ = true;
      started_ = false;
      head_.clear();
      continue;
    }
    if (line == 2) {
      head_complete();
      return i + 1;
    }
    if (++lines_ > limits_.header_count + 1) {
      bad(431, fmt::format("there are more than {} headers", limits_.header_count));
      return i + 1;
    }
    line_begin_ = head_.size();
    if (lines_ == 1) headers_begin_ = line_begin_;
  }
  return bytes.size();
}

void HttpReader::head_complete() {
  HttpParser::Taken taken;
  size_t used = 0;
  while (taken.error.empty() && used < head_.size() && !parser_->head_done()) {
    taken = parser_->put(std::string_view(head_).substr(used));
    used += taken.bytes;
  }
  if (!taken.error.empty()) {
    const bool version = taken.bad_version && head_.find(" HTTP/") < head_.find('\r');
    bad(version ? 505 : 400, "the head is malformed: " + taken.error);
    return;
  }
  if (used != head_.size() || !parser_->head_done()) return bad(400, "the head is malformed");
  if (request_.version / 10 != 1) return bad(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  request_.version = std::min(request_.version, 11);
  request_.keep_alive = parser_->keep_alive();
  check_fields();
  if (state_ == State::kBad) return;
  head_.clear();
  left_ = length_.value_or(0);
  state_ = left_ == 0 && !chunked_ ? State::kDone : State::kBody;
}

void HttpReader::check_fields() {
  size_t hosts = 0, lengths = 0, codings = 0;
  for (const auto& [name, value] : request_.fields) {
    if (same_name(name, "Host")) ++hosts;
    if (same_name(name, "Content-Length")) ++lengths;
    if (same_name(name, "Transfer-Encoding")) ++codings;
  }
  if (hosts != 1) {
    bad(400, fmt::format("there are {} Host headers; expected one", hosts));
    return;
  }
  check_lengths(lengths, codings);
  if (state_ == State::kBad) return;
  if (!request_.target.starts_with('/'))
    bad(400, "the target is not a path");
  else if (const std::string* expect = request_.find("Expect")) {
    const bool known = same_name(*expect, "100-continue");
    if (!known) bad(417, "only 100-continue can be expected");
    // An older client would not understand the interim answer.
    continue_ = known && request_.version == 11;
  }
}

void HttpReader::check_lengths(size_t lengths, size_t codings) {
  if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0))
    return bad(400, "the length of the body is given twice");
  if (codings == 1) {
    if (request_.version == 10)
      bad(400, "HTTP/1.0 has no Transfer-Encoding");
    else if (!same_name(*request_.find("Transfer-Encoding"), "chunked"))
      bad(501, "the only transfer coding known here is chunked");
    chunked_ = true;
    return;
  }
  length_ = 0;
  if (lengths == 1) {
    const std::string& text = *request_.find("Content-Length");
    if (!all_digits(text)) return bad(400, "Content-Length is not a number");
    length_ = text.size() > 18 ? UINT64_MAX : std::stoull(text);
    if (*length_ > limits_.body)
      bad(413, fmt::format("the body is longer than {} bytes", limits_.body));
  } else if (request_.method == "POST" || request_.method == "PUT" || request_.method == "PATCH") {
    bad(411, "a body needs Content-Length or chunks");
  }
}

void HttpReader::give_parser(std::string_view bytes) {
  while (!bytes.empty() && state_ == State::kBody) {
    const HttpParser::Taken taken = parser_->put(bytes);
    if (!taken.error.empty() || taken.bytes == 0)
      return bad(400, "the body is malformed: " + (taken.error.empty() ? "no chunk" : taken.error));
    bytes.remove_prefix(taken.bytes);
  }
}

size_t HttpReader::take_body(std::string_view bytes) {
  const size_t n = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
  give_parser(bytes.substr(0, n));
  left_ -= n;
  if (left_ == 0 && state_ == State::kBody) state_ = State::kDone;
  return n;
}

// Gives the parser whole lines, and data of known length, so that it never waits for the rest of a
// line.
size_t HttpReader::take_chunks(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size() && state_ == State::kBody) {
    if (left_ > 0) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - i));
      give_parser(bytes.substr(i, n));
      left_ -= n;
      i += n;
      continue;
    }
    line_ += bytes[i++];
    const size_t begin = first_chunk_ ? 0 : 2;  // skips the end of the previous chunk
    if (line_.size() > begin + kChunkLine) bad(400, "the line before a chunk is too long");
    if (line_.size() < begin + 2 || !line_.ends_with("\r\n")) continue;
    const size_t digits = line_.find_first_not_of('0', begin);
    const bool last = digits > begin && (line_[digits] == '\r' || line_[digits] == ';');
    if (last && !std::exchange(last_chunk_, true)) continue;  // an empty line follows
    if (last && !line_.ends_with("\r\n\r\n")) {
      bad(400, "trailers are not taken");
      break;
    }
    give_parser(std::exchange(line_, {}));
    first_chunk_ = false;
    left_ = parser_->chunk;
    if (state_ != State::kBody) break;
    if (last) {
      state_ = State::kDone;
    } else if (left_ > limits_.body || (sum_ += left_) > limits_.body) {
      bad(413, fmt::format("the body is longer than {} bytes", limits_.body));
    }
  }
  return i;
}

}  // namespace moebius
