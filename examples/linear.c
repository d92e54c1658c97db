/* SPDX-License-Identifier: Apache-2.0
 * Runs one linear module of a folder from C:  linear FOLDER MODULE */
#include <stdio.h>
#include <stdlib.h>

#include "moebius/moebius.h"

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: linear FOLDER MODULE\n"), 2;
  moebius_folder* folder = moebius_folder_open(argv[1]);
  if (folder == NULL) return fprintf(stderr, "%s\n", moebius_last_error()), 1;
  const moebius_options options = {
      .size = sizeof(moebius_options), .threads = 1, .activations = MOEBIUS_F32};
  moebius_linear* layer = moebius_linear_load(folder, argv[2], &options);
  moebius_folder_free(folder);
  if (layer == NULL) return fprintf(stderr, "%s\n", moebius_last_error()), 1;

  const size_t inputs = moebius_linear_inputs(layer), outputs = moebius_linear_outputs(layer);
  float* x = malloc(inputs * sizeof *x);
  float* y = malloc(outputs * sizeof *y);
  for (size_t i = 0; i < inputs; ++i) x[i] = (float)(i % 7) - 3.0f;
  const moebius_input in = {sizeof(moebius_input), x, MOEBIUS_F32, 1, inputs, 0};
  const moebius_output out = {sizeof(moebius_output), y, MOEBIUS_F32, 1, outputs, 0};
  const int failed = moebius_linear_run(layer, &in, &out);
  if (failed)
    fprintf(stderr, "%s\n", moebius_last_error());
  else
    printf("%zu inputs, %zu outputs, y[0] = %g\n", inputs, outputs, (double)y[0]);
  free(x);
  free(y);
  moebius_linear_free(layer);
  return failed;
}
