// SPDX-License-Identifier: Apache-2.0
// A server with scripted answers for clients that nobody here wrote (bench/serve_agents.py): run by
// name, never with the others. The script is a JSON list of answers, in MOEBIUS_SCRIPT; the address
// goes to stdout; it ends with its standard input.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "unit/serve/agent_util.h"

namespace moebius::test::scripted_server_test {
namespace {

TEST(ScriptedServer, DISABLED_ForClients) {
  const char* script = std::getenv("MOEBIUS_SCRIPT");
  ASSERT_NE(script, nullptr);
  std::vector<std::string> answers;
  const Json list = parse_json(script, "MOEBIUS_SCRIPT");
  for (const Json& a : list.items()) answers.push_back(a.as_string());
  const AgentServer server("hermes", answers);
  std::cout << "http://127.0.0.1:" << server.server->port << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}

}  // namespace
}  // namespace moebius::test::scripted_server_test
