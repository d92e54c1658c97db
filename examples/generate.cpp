// SPDX-License-Identifier: Apache-2.0
// Continues a text:  generate FOLDER TEXT
#include <cstdio>

#include "moebius/model.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: generate FOLDER TEXT\n"), 2;
  try {
    namespace llm = moebius::llm;
    const llm::Model model = llm::Model::load(argv[1]);
    llm::Engine engine(model);
    llm::Request request;
    request.prompt = model.tokenizer().encode(argv[2]);
    request.sampling.max_tokens = 24;
    request.sampling.temperature = 0.0f;
    engine.add(request);
    while (!engine.idle())
      for (const llm::Event& e : engine.step()) {
        std::fputs(e.text.c_str(), stdout);
        std::fflush(stdout);
      }
    std::puts("");
    return 0;
  } catch (const moebius::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
