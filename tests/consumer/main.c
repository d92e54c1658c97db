// SPDX-License-Identifier: Apache-2.0
// A user's program in C, linked with the shared library: runs one block of the folder that is named.
#include <stdio.h>
#include <stdlib.h>

#include "moebius/moebius.h"

static int failed(void) {
  fprintf(stderr, "%s\n", moebius_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2 || moebius_abi_version() != MOEBIUS_ABI) return 2;
  moebius_folder* folder = moebius_folder_open(argv[1]);
  if (folder == NULL || moebius_folder_block_count(folder) == 0) return failed();
  moebius_moe* moe = moebius_moe_load(folder, moebius_folder_block_name(folder, 0), 0, NULL);
  if (moe == NULL) return failed();
  printf("moebius %s: %zu experts of %s\n", moebius_version(), moebius_moe_experts(moe),
         moebius_folder_architecture(folder));
  moebius_moe_free(moe);
  moebius_folder_free(folder);
  return 0;
}
