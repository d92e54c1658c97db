// SPDX-License-Identifier: Apache-2.0
// Implements the communicator of a process that runs alone.
#include <limits>

#include "base/error.h"
#include "runtime/comm.h"
#include "runtime/host_name.h"
#include "runtime/transport.h"

namespace moebius {
namespace {

class LoneTransport : public Transport {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  const std::string& host(int) const override { return host_; }
  size_t largest_message() const noexcept override { return std::numeric_limits<size_t>::max(); }
  std::unique_ptr<Transfer> send(int, int, const void*, size_t) override { nobody(); }
  std::unique_ptr<Transfer> receive(int, int, void*, size_t) override { nobody(); }
  void abort(const std::string&) noexcept override {}

 private:
  [[noreturn]] static void nobody() { fail("one rank has nobody to talk to"); }
  std::string host_ = host_name();
};

}  // namespace

std::unique_ptr<Comm> make_comm_none() {
  return std::make_unique<Comm>(std::make_unique<LoneTransport>());
}

}  // namespace moebius
