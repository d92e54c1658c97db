/* SPDX-License-Identifier: Apache-2.0
 * What a plugin that carries messages between processes exports: one table of C functions, found by
 * the name kMoebiusCommSymbol. The only file that plugins share with the program.
 *
 * Functions that return int give 0, or a code that describe() explains. One thread at a time calls them.
 */
#ifndef MOEBIUS_COMM_TABLE_H_
#define MOEBIUS_COMM_TABLE_H_
#include <stddef.h>
#include <stdint.h>

#define MOEBIUS_COMM_VERSION 1u
#define MOEBIUS_COMM_SYMBOL "moebius_comm_table"

typedef struct MoebiusCommTable {
  uint32_t version; /* first, for ever */
  uint32_t bytes;   /* of this table */
  const char* name; /* "Open MPI" */

  int (*start)(int* rank, int* size);
  int (*library)(char* text, size_t bytes); /* version of the implementation, for people */
  /* Messages of at most 1 GiB. The request is freed by the test that says it is done, or lost. */
  int (*send)(int to, int tag, const void* p, size_t bytes, void** request);
  int (*receive)(int from, int tag, void* p, size_t bytes, void** request);
  int (*test)(void* request, int* done, size_t* received); /* received: of a receive */
  void (*poll)(void);
  void (*stop)(void); /* by all ranks, when nothing is under way */
  void (*abort)(int status);
  void (*describe)(int code, char* text, size_t bytes);
} MoebiusCommTable;

#endif /* MOEBIUS_COMM_TABLE_H_ */
