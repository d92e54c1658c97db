/* SPDX-License-Identifier: Apache-2.0
 * The table of C functions that a plugin for messages between processes exports under the name
 * kMoebiusCommSymbol. The only file that plugins share with the program.
 *
 * Functions that return int give 0, or a code that describe() explains. One thread at a time
 * calls them. */
#ifndef MOEBIUS_COMM_TABLE_H_
#define MOEBIUS_COMM_TABLE_H_
#include <stddef.h>
#include <stdint.h>

#define MOEBIUS_COMM_VERSION 1u
#define MOEBIUS_COMM_SYMBOL "moebius_comm_table"

typedef struct MoebiusCommTable {
  uint32_t version; /* first member in all versions */
  uint32_t bytes;   /* sizeof this table */
  const char* name; /* "Open MPI" */

  int (*start)(int* rank, int* size);
  int (*library)(char* text, size_t bytes); /* writes the MPI's version as text */
  /* Start a message of at most 1 GiB. test() frees the request when it reports it as done, or
   * fails. */
  int (*send)(int to, int tag, const void* p, size_t bytes, void** request);
  int (*receive)(int from, int tag, void* p, size_t bytes, void** request);
  int (*test)(void* request, int* done, size_t* received); /* *received: bytes, for a receive */
  void (*poll)(void);
  void (*stop)(void); /* called by all ranks after all messages are done */
  void (*abort)(int status);
  void (*describe)(int code, char* text, size_t bytes);
} MoebiusCommTable;

#endif /* MOEBIUS_COMM_TABLE_H_ */
