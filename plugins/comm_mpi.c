/* SPDX-License-Identifier: Apache-2.0
 * Messages by MPI. Compiled once for each implementation, whose mpi.h decides the layout of handles; the
 * only file that includes it. Non-blocking calls of MPI-3 alone. Errors are returned, never fatal.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/comm_table.h"

/* Our own communicator, so that nobody else's messages meet ours. */
static MPI_Comm ranks = MPI_COMM_NULL;

typedef struct Request {
  MPI_Request request;
  int receives;
} Request;

static int start(int* rank, int* size) {
  int provided = 0;
  /* One thread at a time, not always the same: a server loads on one and steps on another. */
  int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS) return code;
  if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = MPI_Comm_dup(MPI_COMM_WORLD, &ranks);
  if (code != MPI_SUCCESS) return code;
  MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
  code = MPI_Comm_rank(ranks, rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(ranks, size);
}

static void copy_text(char* to, size_t bytes, const char* from) {
  if (bytes > 0) snprintf(to, bytes, "%s", from);
}

static int library(char* text, size_t bytes) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  const int code = MPI_Get_library_version(version, &length);
  version[strcspn(version, "\n")] = 0;
  copy_text(text, bytes, version);
  return code;
}

static int begin(int receives, int peer, int tag, void* p, size_t bytes, void** request) {
  Request* r = malloc(sizeof *r);
  int code;
  if (r == NULL) return MPI_ERR_NO_MEM;
  r->receives = receives;
  code = receives ? MPI_Irecv(p, (int)bytes, MPI_BYTE, peer, tag, ranks, &r->request)
                  : MPI_Isend(p, (int)bytes, MPI_BYTE, peer, tag, ranks, &r->request);
  if (code != MPI_SUCCESS) {
    free(r);
    return code;
  }
  *request = r;
  return MPI_SUCCESS;
}

static int send(int to, int tag, const void* p, size_t bytes, void** request) {
  return begin(0, to, tag, (void*)p, bytes, request);
}

static int receive(int from, int tag, void* p, size_t bytes, void** request) {
  return begin(1, from, tag, p, bytes, request);
}

static int test(void* request, int* done, size_t* received) {
  Request* r = request;
  MPI_Status status;
  int count = 0, code = MPI_Test(&r->request, done, &status);
  if (code != MPI_SUCCESS || !*done) return code;
  if (r->receives) code = MPI_Get_count(&status, MPI_BYTE, &count);
  *received = (size_t)count;
  free(r);
  return code;
}

static void poll(void) {
  int flag = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ranks, &flag, MPI_STATUS_IGNORE);
}

/* MPICH over TCP (4.0, UCX): in MPI_Finalize ranks wait for each other's answers, and those that wait for the
 * launcher do not answer, so half of the jobs never end. Under its own launcher, which names the ranks of a
 * machine to each of them, a rank therefore says what MPI_Finalize says at last, and goes. Others: MPI_Finalize. */
static int launcher(void) {
#if defined(MPICH_VERSION)
  const char* text = getenv("PMI_FD");
  return text != NULL && getenv("MPI_LOCALNRANKS") != NULL ? atoi(text) : -1;
#else
  return -1;
#endif
}

static int leave(int fd) {
  static const char kDone[] = "cmd=finalize\n";
  char answer[64];
  return write(fd, kDone, sizeof kDone - 1) > 0 && read(fd, answer, sizeof answer) > 0;
}

static void stop(void) {
  /* All ranks go the same way: one in MPI_Finalize waits for the others there. */
  int fd = launcher(), all = -1;
  if (ranks != MPI_COMM_NULL) MPI_Barrier(ranks), MPI_Comm_free(&ranks);
  MPI_Allreduce(&fd, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  if (all < 0 || !leave(fd)) MPI_Finalize();
}

static void abort_all(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

static void describe(int code, char* text, size_t bytes) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS)
    snprintf(words, sizeof words, "error %d", code);
  copy_text(text, bytes, words);
}

#if defined(OPEN_MPI)
#define NAME "Open MPI"
#elif defined(MPICH_VERSION)
#define NAME "MPICH"
#else
#define NAME "MPI"
#endif

__attribute__((visibility("default")))
const MoebiusCommTable moebius_comm_table = {MOEBIUS_COMM_VERSION,
                                             sizeof(MoebiusCommTable),
                                             NAME,
                                             start,
                                             library,
                                             send,
                                             receive,
                                             test,
                                             poll,
                                             stop,
                                             abort_all,
                                             describe};
