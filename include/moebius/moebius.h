/* SPDX-License-Identifier: Apache-2.0
 * The C interface: opaque handles, error strings, plain structs; no exception crosses it.
 * docs/api.md has a line for every function.
 *
 * Functions that can fail return NULL or a non-zero number; moebius_last_error() then says why
 * (per thread, valid until the next failing call of that thread). Handles are freed by their _free
 * function, which accepts NULL. A call with a handle that was freed, that is of another kind, or
 * that was made before a fork() fails with an error.
 *
 * Every struct begins with size: the caller sets it to sizeof the struct; members added later
 * keep their default when an older program leaves them out. A result of type char* belongs to the
 * caller, who frees it with moebius_string_free; const char* belongs to the handle that returned it
 * and lives as long. Texts are UTF-8. */
#ifndef MOEBIUS_MOEBIUS_H
#define MOEBIUS_MOEBIUS_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Version of the binary interface. Added functions and added last members of structs leave it as
 * it is; every other change increases it. */
#define MOEBIUS_ABI 1

typedef struct moebius_folder moebius_folder;
typedef struct moebius_linear moebius_linear;
typedef struct moebius_moe moebius_moe;
typedef struct moebius_runtime moebius_runtime;
typedef struct moebius_model moebius_model;
typedef struct moebius_engine moebius_engine;
typedef struct moebius_tokenizer moebius_tokenizer;
typedef struct moebius_stream moebius_stream;
typedef struct moebius_scheme moebius_scheme;
typedef struct moebius_moe_builder moebius_moe_builder;

typedef enum { MOEBIUS_F32 = 0, MOEBIUS_BF16 = 1, MOEBIUS_F16 = 2 } moebius_type;
typedef enum {
  MOEBIUS_DECLARED = 0,
  MOEBIUS_EXACT = 1,
  MOEBIUS_APPROXIMATE = 2
} moebius_arithmetic;
/* Selects the formulas for dynamic int8 activations, which differ in rounding. DECLARED: as the
 * checkpoint's format prescribes; the others imitate compressed-tensors or vLLM's CPU kernels. */
typedef enum {
  MOEBIUS_INT8_DECLARED = 0,
  MOEBIUS_INT8_COMPRESSED_TENSORS = 1,
  MOEBIUS_INT8_VLLM = 2
} moebius_int8;
/* Element type of a moebius_tensor. */
typedef enum {
  MOEBIUS_TENSOR_F32 = 0,
  MOEBIUS_TENSOR_BF16 = 1,
  MOEBIUS_TENSOR_F16 = 2,
  MOEBIUS_TENSOR_I8 = 3,
  MOEBIUS_TENSOR_U8 = 4,
  MOEBIUS_TENSOR_I32 = 5,
  MOEBIUS_TENSOR_I64 = 6,
  MOEBIUS_TENSOR_F8E4M3 = 7,
  MOEBIUS_TENSOR_U32 = 8
} moebius_tensor_type;
/* Selects how tensor parallelism divides a matrix over ranks. */
typedef enum {
  MOEBIUS_SPLIT_NONE = 0,
  MOEBIUS_SPLIT_OUTPUTS = 1, /* the caller concatenates the ranks' outputs */
  MOEBIUS_SPLIT_INPUTS = 2   /* the caller adds the ranks' results; rank 0 adds the bias */
} moebius_split;
typedef enum {
  MOEBIUS_THREADS_OWN = 0,
  MOEBIUS_THREADS_OPENMP = 1 /* the team of the OpenMP runtime that the process has loaded */
} moebius_thread_kind;
/* Selects how rows of activations are multiplied. INT8: weights in integers whose checkpoint
 * declares no quantization of activations are multiplied with dynamic int8 rows, which is faster
 * and approximate. */
typedef enum { MOEBIUS_ROWS_DECLARED = 0, MOEBIUS_ROWS_INT8 = 1 } moebius_rows;
typedef enum {
  MOEBIUS_FINISH_NONE = 0,
  MOEBIUS_FINISH_STOP = 1,    /* the model produced a stop token or text */
  MOEBIUS_FINISH_LENGTH = 2,  /* the answer has max_tokens tokens */
  MOEBIUS_FINISH_CONTEXT = 3, /* context or memory has no room for more */
  MOEBIUS_FINISH_CANCELLED = 4,
  MOEBIUS_FINISH_ERROR = 5
} moebius_finish;

/* Receives the progress of a long call, in bytes unless the call says otherwise. Called by one
 * thread at a time, from any thread; returning anything but 0 cancels the work. */
typedef int (*moebius_progress)(void* user, uint64_t done, uint64_t total);

typedef struct {
  size_t size;
  int32_t threads;    /* 0: all cores, or as many as runtime has */
  const char* kernel; /* name of a kernel; NULL: the best for this CPU */
  moebius_arithmetic arithmetic;
  moebius_type activations; /* type of the rows x of later calls */
  /* NULL: a runtime shared by all layers with the same number of threads */
  const moebius_runtime* runtime;
  moebius_int8 int8_rows;
  /* The part of the layer to load when several processes (ranks) run it together: matrices are
   * split over tp ranks (tensor parallelism), experts over ep ranks (expert parallelism). 0 counts
   * as 1. */
  size_t tp, tp_rank, ep, ep_rank;
  int32_t round_robin; /* 1: expert e is on rank e % ep; 0: each rank has a range */
  moebius_rows rows;
  moebius_progress progress; /* NULL: none; ignored by moebius_moe_begin */
  void* user;
  const char* device; /* NULL or cpu; cuda: layers of a folder run on a GPU */
} moebius_options;

typedef struct {
  size_t size;
  int32_t threads; /* 0: one per entry of cpus, or all cores */
  /* one CPU per thread, the calling thread's first; NULL: chosen by the library */
  const int32_t* cpus;
  size_t cpu_count;
  moebius_thread_kind kind;
} moebius_runtime_options;

/* One tensor in memory of the caller, read until the call that receives it returns. In an array
 * the next tensor begins `size` bytes after this one. */
typedef struct {
  size_t size;
  const char* name;
  const void* data;
  moebius_tensor_type type;
  size_t rank;
  const uint64_t* shape;
  const int64_t* stride; /* elements between neighbours of each dimension; NULL: contiguous */
} moebius_tensor;

/* One matrix of a linear layer. The names of its tensors are suffixes: weight_packed,
 * weight_scale, bias, ... */
typedef struct {
  size_t size;
  const char* name;             /* only used in error messages */
  const moebius_scheme* scheme; /* NULL: dense */
  size_t outputs, inputs;       /* of the whole matrix, before it is split over ranks */
  moebius_split split;
  size_t tp, tp_rank; /* 0: those of moebius_options */
  const moebius_tensor* tensors;
  size_t tensor_count;
} moebius_part;

typedef struct {
  size_t size;
  const char* name; /* only used in error messages */
  /* of the whole layer, before it is split over ranks */
  size_t hidden, intermediate, experts, slots;
  const char* activation; /* name as in config.json; NULL: silu */
  /* swiglu: values are clamped to [-limit, limit]; 0: no limit */
  float limit;
  float alpha, beta;         /* constants of swigluoai; alpha 0: 1.702 and 1 */
  const int32_t* expert_map; /* [experts] index on this rank, -1: elsewhere; NULL: by ep */
  size_t gate_up_step;       /* 1 or 0: all gate rows, then all up rows; 2: they alternate */
  /* The members below are read by moebius_moe_run_logits only: they say how logits become
   * choices of experts. */
  const char* scoring; /* NULL or softmax; sigmoid */
  int32_t renormalize;
  size_t groups, group_slots;   /* choose within the best group_slots of groups; 0: no groups */
  float scaling;                /* factor of all weights; 0 counts as 1 */
  const float* correction_bias; /* [experts], added for the choice only; NULL: none */
} moebius_moe_spec;

/* A matrix of the caller: rows x cols elements, row r starts `stride` elements after row r - 1
 * (0: cols). */
typedef struct {
  size_t size;
  const void* data;
  moebius_type type;
  size_t rows, cols, stride;
} moebius_input;
typedef struct {
  size_t size;
  void* data;
  moebius_type type;
  size_t rows, cols, stride;
} moebius_output;

/* Facts about one module of a folder; the texts live as long as the folder. */
typedef struct {
  size_t size;
  const char *name, *kind, *scheme, *rule;
  const char* problem; /* why the module cannot run; NULL: it can */
  size_t outputs, inputs;
  uint64_t bytes;
} moebius_module;

typedef struct {
  size_t size;
  int32_t threads;
  const char* kernel;
  moebius_arithmetic arithmetic;
  moebius_int8 int8_rows;
  const char* dtype; /* type of activations: NULL or auto, bf16, f16, f32 */
  /* type of cached keys and values: NULL or auto, bf16, f16, f32, int8, fp8 */
  const char* kv_dtype;
  /* longest sequence in tokens that will be run; 0: what the config allows */
  size_t context;
  const moebius_runtime* runtime; /* NULL: one that models share */
  moebius_progress progress;      /* NULL: none */
  void* user;
  moebius_rows rows;
  /* folder that caches packed weights: the first load writes, later ones map; NULL: none */
  const char* pack_dir;
  const char* speculate; /* speculative decoding; answers stay the same: NULL or lookup, mtp, off */
  const char* device;    /* NULL or cpu; cuda or cuda:N: on a GPU */
  /* place of the experts of a model on a GPU: NULL: on the GPU; cpu: on the CPU; auto: on the GPU
   * as far as they fit */
  const char* experts;
  uint64_t gpu_memory; /* most bytes of GPU memory; 0: all free bytes but 1 GiB */
} moebius_model_options;

typedef struct {
  size_t size;
  size_t context;    /* most tokens of a sequence; 0: what the model allows */
  size_t parallel;   /* number of sequences that run at once; 0 counts as 1 */
  uint64_t kv_bytes; /* memory for cached keys and values, bytes; 0: by the free memory */
  double max_step;   /* target for a step that reads a prompt, in seconds; 0: 1 */
} moebius_engine_options;

/* One request to an engine. moebius_request_init sets every member to "not said": NaN for
 * floating-point numbers, -1 for integers that cannot be negative. The folder's
 * generation_config.json decides what is not said. */
typedef struct {
  size_t size;
  const int32_t* prompt;
  size_t prompt_tokens;
  float temperature; /* 0: greedy */
  float top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k; /* 0: no limit */
  uint64_t seed;
  int32_t logprobs;   /* number of alternatives reported per token; -1: no probabilities */
  int64_t max_tokens; /* -1: the folder's max_new_tokens, else 256 */
  int64_t min_tokens;
  const char* const* stop; /* texts that end the answer */
  size_t stops;
  const int32_t* stop_tokens;
  size_t stop_token_count;
  int32_t ignore_eos, include_stop, skip_special; /* each 0 or 1 */
  size_t n;                                       /* number of independent answers */
  const char* json_schema;   /* the answer is valid for this JSON schema; NULL or "": any text */
  const char* regex;         /* the whole answer matches this regular expression; NULL or "": any */
  const char* const* choice; /* the answer is one of these texts */
  size_t choices;
  /* JSON of tools that an answer may call, as in moebius_chat; NULL or "": none */
  const char* tools;
  const char* tool_choice; /* NULL or "auto", "required", or the name of a tool */
  /* Tokens whose logit is so many standard deviations of all logits below the greatest are dropped;
   * 0 or less: none. */
  float top_n_sigma;
} moebius_request;

typedef struct {
  int32_t token;
  float logprob;
} moebius_alternative;

/* One result of a step for one answer. In an array the next event begins `size` bytes after this
 * one. */
typedef struct {
  size_t size;
  uint64_t id;
  size_t choice;
  int32_t token; /* -1: this event has no token */
  float logprob;
  const moebius_alternative* top; /* most likely tokens, best first */
  size_t tops;
  const char* text; /* never NULL */
  size_t text_bytes;
  moebius_finish finish;
  int32_t stop_token;    /* token that ended the answer; -1: none did */
  const char* stop_text; /* text that ended the answer; NULL: none did */
  const char* error;     /* the reason if finish is MOEBIUS_FINISH_ERROR, else NULL */
  size_t cached_tokens;
} moebius_event;

typedef struct {
  size_t size;
  double loss, error, perplexity;
  size_t tokens;
} moebius_perplexity;

/* A chat as JSON texts; NULL for what is not given. */
typedef struct {
  size_t size;
  const char *messages, *tools, *documents, *extra;
  int32_t add_generation_prompt;
} moebius_chat;

const char* moebius_version(void);
uint32_t moebius_abi_version(void);
const char* moebius_cpu(void);       /* architecture and the CPU features that the library uses */
const char* moebius_cpu_model(void); /* name of the CPU's model */
/* Makes the library use only these CPU features ("neon,dotprod"). Must be the first call of the
 * library in the process. */
int moebius_narrow_cpu(const char* features);
size_t moebius_kernel_count(void);
const char* moebius_kernel_name(size_t i);
void moebius_string_free(char* text);

const char* moebius_last_error(void);
const char* moebius_last_error_field(const char* name);

moebius_runtime* moebius_runtime_new(int32_t threads);
moebius_runtime* moebius_runtime_new_with(const moebius_runtime_options* options);
void moebius_runtime_free(moebius_runtime* runtime);
size_t moebius_runtime_threads(const moebius_runtime* runtime);

moebius_folder* moebius_folder_open(const char* path);
void moebius_folder_free(moebius_folder* folder);
const char* moebius_folder_architecture(const moebius_folder* folder);
size_t moebius_folder_module_count(const moebius_folder* folder);
int moebius_folder_module(const moebius_folder* folder, size_t i, moebius_module* to);
const char* moebius_folder_module_name(const moebius_folder* folder, size_t i);
const char* moebius_folder_module_scheme(const moebius_folder* folder, size_t i);
const char* moebius_folder_module_problem(const moebius_folder* folder, size_t i);
size_t moebius_folder_block_count(const moebius_folder* folder);
const char* moebius_folder_block_name(const moebius_folder* folder, size_t i);
size_t moebius_folder_warning_count(const moebius_folder* folder);
const char* moebius_folder_warning(const moebius_folder* folder, size_t i);
char* moebius_folder_inspect_json(const moebius_folder* folder, int deep);
char* moebius_folder_explain_json(const moebius_folder* folder, const char* cpu);

/* Parses one group of a compressed-tensors quantization_config, to which the caller adds the
 * config's format and version; or the whole quantization_config of another method (gptq, awq,
 * fp8, modelopt, ...), with the module's name as "module" if its rules go by name; "{}" is a
 * dense scheme. Tensors may have the method's names (qweight, weight_scale_inv, ...), which
 * moebius_scheme_tensor lists. */
moebius_scheme* moebius_scheme_parse(const char* json);
void moebius_scheme_free(moebius_scheme* scheme);
char* moebius_scheme_family(const moebius_scheme* scheme);
char* moebius_scheme_describe(const moebius_scheme* scheme);
/* Returns why no linear layer (expert = 0) or routed expert (1) can be built with this scheme;
 * "" when one can. */
char* moebius_scheme_problem(const moebius_scheme* scheme, int expert);
size_t moebius_scheme_tensor_count(const moebius_scheme* scheme);
const char* moebius_scheme_tensor(const moebius_scheme* scheme, size_t i, int* required);

/* Builds one linear layer whose outputs are those of all parts in order. */
moebius_linear* moebius_linear_build(const moebius_part* parts, size_t count,
                                     const moebius_options* options);
moebius_linear* moebius_linear_load(const moebius_folder* folder, const char* module,
                                    const moebius_options* options);
void moebius_linear_free(moebius_linear* layer);
size_t moebius_linear_inputs(const moebius_linear* layer);
size_t moebius_linear_outputs(const moebius_linear* layer);
char* moebius_linear_kernel(const moebius_linear* layer);
uint64_t moebius_linear_packed_bytes(const moebius_linear* layer);
const char* moebius_linear_device(const moebius_linear* layer); /* cpu or cuda */
int moebius_linear_run(const moebius_linear* layer, const moebius_input* x,
                       const moebius_output* y);
/* Runs a layer that is on a GPU: data of x and y are device addresses; the work is queued on
 * `stream` (a cudaStream_t; NULL: the default stream) and the call does not wait for it. A CUDA
 * graph may capture the call. */
int moebius_linear_launch(const moebius_linear* layer, const moebius_input* x,
                          const moebius_output* y, void* stream);

moebius_moe* moebius_moe_load(const moebius_folder* folder, const char* block, int experts_only,
                              const moebius_options* options);
/* Build a mixture of experts from tensors in memory. _set_expert takes the experts one by one,
 * in any order and from any thread: tensors gate.weight_packed, up.weight_scale, down.bias, ...;
 * gate_up.* if gate and up are one matrix. A scheme of NULL is dense. _finish returns the layer,
 * once; the builder must be freed as well. */
moebius_moe_builder* moebius_moe_begin(const moebius_moe_spec* spec, const moebius_scheme* gate,
                                       const moebius_scheme* up, const moebius_scheme* down,
                                       const moebius_options* options);
int moebius_moe_set_expert(moebius_moe_builder* builder, size_t id, const moebius_tensor* tensors,
                           size_t count);
moebius_moe* moebius_moe_finish(moebius_moe_builder* builder);
void moebius_moe_builder_free(moebius_moe_builder* builder);
void moebius_moe_free(moebius_moe* layer);
size_t moebius_moe_hidden(const moebius_moe* layer);
size_t moebius_moe_experts(const moebius_moe* layer);
size_t moebius_moe_slots(const moebius_moe* layer);
char* moebius_moe_kernel(const moebius_moe* layer);
uint64_t moebius_moe_packed_bytes(const moebius_moe* layer);
/* Runs router and experts. ids and weights [rows, slots] receive the router's choice (-1: an
 * identity expert); NULL: not wanted. */
int moebius_moe_run(const moebius_moe* layer, const moebius_input* x, const moebius_output* y,
                    int32_t* ids, float* weights);
int moebius_moe_run_logits(const moebius_moe* layer, const moebius_input* x,
                           const moebius_input* logits, const moebius_output* y, int32_t* ids,
                           float* weights);
/* Runs the experts that the caller chose: ids and weights [rows, k]; an id of -1 skips the slot. */
int moebius_moe_run_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                        const float* weights, size_t k, const moebius_output* y);
const char* moebius_moe_device(const moebius_moe* layer);
/* Run a layer that is on a GPU, with the arguments of the _run functions: all addresses are
 * device addresses, as for moebius_linear_launch. An id that no expert has counts as -1. */
int moebius_moe_launch(const moebius_moe* layer, const moebius_input* x, const moebius_output* y,
                       int32_t* ids, float* weights, void* stream);
int moebius_moe_launch_logits(const moebius_moe* layer, const moebius_input* x,
                              const moebius_input* logits, const moebius_output* y, int32_t* ids,
                              float* weights, void* stream);
int moebius_moe_launch_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                           const float* weights, size_t k, const moebius_output* y, void* stream);

moebius_tokenizer* moebius_tokenizer_open(const char* folder);
void moebius_tokenizer_free(moebius_tokenizer* tokenizer);
/* Turns a text into token ids. Writes at most `capacity` ids; *count is the number of ids of the
 * whole text, which may be larger. */
int moebius_tokenizer_encode(const moebius_tokenizer* tokenizer, const char* text, size_t bytes,
                             int add_special, int32_t* ids, size_t capacity, size_t* count);
/* Turns token ids into text. *bytes (bytes may be NULL) is the length of the text without the 0
 * that ends it; so it is in the functions below. */
char* moebius_tokenizer_decode(const moebius_tokenizer* tokenizer, const int32_t* ids, size_t count,
                               int skip_special, size_t* bytes);
size_t moebius_tokenizer_vocab(const moebius_tokenizer* tokenizer);
char* moebius_tokenizer_token(const moebius_tokenizer* tokenizer, int32_t id, size_t* bytes);
int32_t moebius_tokenizer_id(const moebius_tokenizer* tokenizer, const char* token);
int moebius_tokenizer_is_special(const moebius_tokenizer* tokenizer, int32_t id);
int moebius_tokenizer_has_template(const moebius_tokenizer* tokenizer);
char* moebius_tokenizer_template(const moebius_tokenizer* tokenizer, const moebius_chat* chat,
                                 size_t* bytes);
int moebius_tokenizer_chat(const moebius_tokenizer* tokenizer, const moebius_chat* chat,
                           int32_t* ids, size_t capacity, size_t* count);
/* Parses the tokens that a model answered to a chat and returns the next message as JSON:
 * content, reasoning_content, and tool_calls if the chat has tools. ended: 1 if the model ended
 * the answer itself, 0 if a length limit did. */
char* moebius_tokenizer_answer(const moebius_tokenizer* tokenizer, const moebius_chat* chat,
                               const int32_t* ids, size_t count, int ended, size_t* bytes);

moebius_stream* moebius_stream_new(const moebius_tokenizer* tokenizer, int skip_special);
void moebius_stream_free(moebius_stream* stream);
char* moebius_stream_push(moebius_stream* stream, int32_t id, size_t* bytes);
char* moebius_stream_finish(moebius_stream* stream, size_t* bytes);

moebius_model* moebius_model_load(const char* folder, const moebius_model_options* options);
void moebius_model_free(moebius_model* model);
size_t moebius_model_vocab(const moebius_model* model);
size_t moebius_model_context(const moebius_model* model);
char* moebius_model_info_json(const moebius_model* model);
moebius_tokenizer* moebius_model_tokenizer(const moebius_model* model);
int moebius_model_logits(const moebius_model* model, const int32_t* tokens, size_t count,
                         float* logits, size_t room);
int moebius_model_perplexity(const moebius_model* model, const int32_t* tokens, size_t count,
                             size_t context, moebius_perplexity* to);

moebius_engine* moebius_engine_new(const moebius_model* model,
                                   const moebius_engine_options* options);
void moebius_engine_free(moebius_engine* engine);
int moebius_request_init(moebius_request* request, size_t size);
int moebius_engine_add(moebius_engine* engine, const moebius_request* request, uint64_t* id);
int moebius_engine_cancel(moebius_engine* engine, uint64_t id);
int moebius_engine_idle(const moebius_engine* engine);
size_t moebius_engine_context(const moebius_engine* engine);
/* Runs one batch of all requests of the engine. The events live until the next step of the engine,
 * or until the engine is freed. */
int moebius_engine_step(moebius_engine* engine, const moebius_event** events, size_t* count);

/* Do what the commands `quantize` and `eval` do. Options and results are JSON: options by the
 * names of the commands' options, results as --json prints them. progress (NULL: none) is given
 * bytes of the source by the first function, positions of the text by the second. */
char* moebius_quantize_json(const char* options, moebius_progress progress, void* user);
char* moebius_evaluate_json(const char* options, moebius_progress progress, void* user);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
