/* SPDX-License-Identifier: Apache-2.0
 * The C interface: opaque handles, error strings, plain structs; no exception crosses it.
 *
 * Functions that can fail return NULL or a non-zero number; moebius_last_error() then says why (per thread, valid until the
 * next failing call of that thread). Handles are freed by their _free function; NULL is accepted there. */
#ifndef MOEBIUS_MOEBIUS_H
#define MOEBIUS_MOEBIUS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moebius_folder moebius_folder;
typedef struct moebius_linear moebius_linear;
typedef struct moebius_moe moebius_moe;
typedef struct moebius_runtime moebius_runtime;

typedef enum { MOEBIUS_F32 = 0, MOEBIUS_BF16 = 1, MOEBIUS_F16 = 2 } moebius_type;
typedef enum {
  MOEBIUS_DECLARED = 0,
  MOEBIUS_EXACT = 1,
  MOEBIUS_APPROXIMATE = 2
} moebius_arithmetic;

/* Set size to sizeof(moebius_options); members added later keep their default when an older program leaves them out. */
typedef struct {
  size_t size;
  int32_t threads;    /* 0: all cores, or those of runtime */
  const char* kernel; /* NULL: the best for this CPU */
  moebius_arithmetic arithmetic;
  moebius_type activations;       /* type of the rows that will be given */
  const moebius_runtime* runtime; /* NULL: the one that layers of so many threads share */
} moebius_options;

/* rows x cols elements, row r starting `stride` elements after row r - 1 (0: cols). */
typedef struct {
  const void* data;
  moebius_type type;
  size_t rows, cols, stride;
} moebius_input;
typedef struct {
  void* data;
  moebius_type type;
  size_t rows, cols, stride;
} moebius_output;

const char* moebius_version(void);
const char* moebius_last_error(void);

/* Threads of their own for the layers that name them; they end when it and the last of those layers were freed. 0: all cores. */
moebius_runtime* moebius_runtime_new(int32_t threads);
void moebius_runtime_free(moebius_runtime* runtime);
size_t moebius_runtime_threads(const moebius_runtime* runtime);

moebius_folder* moebius_folder_open(const char* path);
void moebius_folder_free(moebius_folder* folder);
size_t moebius_folder_module_count(const moebius_folder* folder);
/* Name, scheme in words, and NULL or the reason why module i cannot run; valid as long as the folder. */
const char* moebius_folder_module_name(const moebius_folder* folder, size_t i);
const char* moebius_folder_module_scheme(const moebius_folder* folder, size_t i);
const char* moebius_folder_module_problem(const moebius_folder* folder, size_t i);

/* options may be NULL (bf16 activations, all cores, declared arithmetic). Layers outlive their folder. */
moebius_linear* moebius_linear_load(const moebius_folder* folder, const char* module,
                                    const moebius_options* options);
void moebius_linear_free(moebius_linear* layer);
size_t moebius_linear_inputs(const moebius_linear* layer);
size_t moebius_linear_outputs(const moebius_linear* layer);
int moebius_linear_run(const moebius_linear* layer, const moebius_input* x,
                       const moebius_output* y);

/* experts_only: 0 for the whole block, 1 for its routed experts alone. */
moebius_moe* moebius_moe_load(const moebius_folder* folder, const char* block, int experts_only,
                              const moebius_options* options);
void moebius_moe_free(moebius_moe* layer);
size_t moebius_moe_hidden(const moebius_moe* layer);
size_t moebius_moe_experts(const moebius_moe* layer);
size_t moebius_moe_slots(const moebius_moe* layer);
int moebius_moe_run(const moebius_moe* layer, const moebius_input* x, const moebius_output* y);
int moebius_moe_run_logits(const moebius_moe* layer, const moebius_input* x,
                           const moebius_input* logits, const moebius_output* y);
/* ids and weights: [rows, k]; an id of -1 skips the slot. */
int moebius_moe_run_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                        const float* weights, size_t k, const moebius_output* y);

#ifdef __cplusplus
}
#endif
#endif
