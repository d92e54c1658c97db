/* SPDX-License-Identifier: Apache-2.0
 * Continues a text:  generate FOLDER TEXT */
#include <stdio.h>
#include <string.h>

#include "moebius/moebius.h"

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: generate FOLDER TEXT\n"), 2;
  int32_t tokens[4096];
  size_t count = 0;
  moebius_model* model = moebius_model_load(argv[1], NULL);
  if (model == NULL) return fprintf(stderr, "%s\n", moebius_last_error()), 1;
  moebius_tokenizer* tokenizer = moebius_model_tokenizer(model);
  moebius_engine* engine = moebius_engine_new(model, NULL);
  moebius_request request;
  moebius_request_init(&request, sizeof request);
  request.prompt = tokens;
  request.max_tokens = 24;
  request.temperature = 0;
  int failed = moebius_tokenizer_encode(tokenizer, argv[2], strlen(argv[2]), 1, tokens, 4096, &count);
  request.prompt_tokens = count < 4096 ? count : 4096;
  failed = failed || moebius_engine_add(engine, &request, NULL);
  while (!failed && !moebius_engine_idle(engine)) {
    const moebius_event* events;
    failed = moebius_engine_step(engine, &events, &count);
    for (size_t i = 0; !failed && i < count; ++i) fputs(events[i].text, stdout);
    fflush(stdout);
  }
  puts("");
  if (failed) fprintf(stderr, "%s\n", moebius_last_error());
  moebius_engine_free(engine);
  moebius_tokenizer_free(tokenizer);
  moebius_model_free(model);
  return failed;
}
