# SPDX-License-Identifier: Apache-2.0
"""ctypes declarations of moebius.h; written by scripts/generate_abi.py, not by hand."""
from __future__ import annotations

from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)

ABI = 1

# Ranges of sampling parameters: src/base/sampling_numbers.inc, and the library's checks of the rest.
SAMPLING_REAL = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_n_sigma": (-100, 100),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
}
SAMPLING_WHOLE = {
    "top_k": (0, 1073741824),
    "logprobs": (-1, 1000),
    "min_tokens": (0, 1073741824),
    "n": (1, 1024),
}

MOEBIUS_F32 = 0
MOEBIUS_BF16 = 1
MOEBIUS_F16 = 2
MOEBIUS_DECLARED = 0
MOEBIUS_EXACT = 1
MOEBIUS_APPROXIMATE = 2
MOEBIUS_INT8_DECLARED = 0
MOEBIUS_INT8_COMPRESSED_TENSORS = 1
MOEBIUS_INT8_VLLM = 2
MOEBIUS_TENSOR_F32 = 0
MOEBIUS_TENSOR_BF16 = 1
MOEBIUS_TENSOR_F16 = 2
MOEBIUS_TENSOR_I8 = 3
MOEBIUS_TENSOR_U8 = 4
MOEBIUS_TENSOR_I32 = 5
MOEBIUS_TENSOR_I64 = 6
MOEBIUS_TENSOR_F8E4M3 = 7
MOEBIUS_TENSOR_U32 = 8
MOEBIUS_SPLIT_NONE = 0
MOEBIUS_SPLIT_OUTPUTS = 1
MOEBIUS_SPLIT_INPUTS = 2
MOEBIUS_THREADS_OWN = 0
MOEBIUS_THREADS_OPENMP = 1
MOEBIUS_ROWS_DECLARED = 0
MOEBIUS_ROWS_INT8 = 1
MOEBIUS_FINISH_NONE = 0
MOEBIUS_FINISH_STOP = 1
MOEBIUS_FINISH_LENGTH = 2
MOEBIUS_FINISH_CONTEXT = 3
MOEBIUS_FINISH_CANCELLED = 4
MOEBIUS_FINISH_ERROR = 5

moebius_progress = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)



class moebius_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("kernel", c_char_p),
        ("arithmetic", c_int),
        ("activations", c_int),
        ("runtime", c_void_p),
        ("int8_rows", c_int),
        ("tp", c_size_t),
        ("tp_rank", c_size_t),
        ("ep", c_size_t),
        ("ep_rank", c_size_t),
        ("round_robin", c_int32),
        ("rows", c_int),
        ("progress", moebius_progress),
        ("user", c_void_p),
        ("device", c_char_p),
    ]


class moebius_runtime_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("cpus", POINTER(c_int32)),
        ("cpu_count", c_size_t),
        ("kind", c_int),
    ]


class moebius_tensor(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("type", c_int),
        ("rank", c_size_t),
        ("shape", POINTER(c_uint64)),
        ("stride", POINTER(c_int64)),
    ]


class moebius_part(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("scheme", c_void_p),
        ("outputs", c_size_t),
        ("inputs", c_size_t),
        ("split", c_int),
        ("tp", c_size_t),
        ("tp_rank", c_size_t),
        ("tensors", POINTER(moebius_tensor)),
        ("tensor_count", c_size_t),
    ]


class moebius_moe_spec(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("hidden", c_size_t),
        ("intermediate", c_size_t),
        ("experts", c_size_t),
        ("slots", c_size_t),
        ("activation", c_char_p),
        ("limit", c_float),
        ("alpha", c_float),
        ("beta", c_float),
        ("expert_map", POINTER(c_int32)),
        ("gate_up_step", c_size_t),
        ("scoring", c_char_p),
        ("renormalize", c_int32),
        ("groups", c_size_t),
        ("group_slots", c_size_t),
        ("scaling", c_float),
        ("correction_bias", POINTER(c_float)),
    ]


class moebius_input(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("type", c_int),
        ("rows", c_size_t),
        ("cols", c_size_t),
        ("stride", c_size_t),
    ]


class moebius_output(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("type", c_int),
        ("rows", c_size_t),
        ("cols", c_size_t),
        ("stride", c_size_t),
    ]


class moebius_module(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("kind", c_char_p),
        ("scheme", c_char_p),
        ("rule", c_char_p),
        ("problem", c_char_p),
        ("outputs", c_size_t),
        ("inputs", c_size_t),
        ("bytes", c_uint64),
    ]


class moebius_model_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("kernel", c_char_p),
        ("arithmetic", c_int),
        ("int8_rows", c_int),
        ("dtype", c_char_p),
        ("kv_dtype", c_char_p),
        ("context", c_size_t),
        ("runtime", c_void_p),
        ("progress", moebius_progress),
        ("user", c_void_p),
        ("rows", c_int),
        ("pack_dir", c_char_p),
        ("speculate", c_char_p),
        ("device", c_char_p),
        ("experts", c_char_p),
        ("gpu_memory", c_uint64),
    ]


class moebius_engine_options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("context", c_size_t),
        ("parallel", c_size_t),
        ("kv_bytes", c_uint64),
        ("max_step", c_double),
    ]


class moebius_request(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("prompt", POINTER(c_int32)),
        ("prompt_tokens", c_size_t),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("top_k", c_int32),
        ("seed", c_uint64),
        ("logprobs", c_int32),
        ("max_tokens", c_int64),
        ("min_tokens", c_int64),
        ("stop", POINTER(c_char_p)),
        ("stops", c_size_t),
        ("stop_tokens", POINTER(c_int32)),
        ("stop_token_count", c_size_t),
        ("ignore_eos", c_int32),
        ("include_stop", c_int32),
        ("skip_special", c_int32),
        ("n", c_size_t),
        ("json_schema", c_char_p),
        ("regex", c_char_p),
        ("choice", POINTER(c_char_p)),
        ("choices", c_size_t),
        ("tools", c_char_p),
        ("tool_choice", c_char_p),
        ("top_n_sigma", c_float),
    ]


class moebius_alternative(Structure):
    _fields_ = [
        ("token", c_int32),
        ("logprob", c_float),
    ]


class moebius_event(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("id", c_uint64),
        ("choice", c_size_t),
        ("token", c_int32),
        ("logprob", c_float),
        ("top", POINTER(moebius_alternative)),
        ("tops", c_size_t),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
        ("finish", c_int),
        ("stop_token", c_int32),
        ("stop_text", c_char_p),
        ("error", c_char_p),
        ("cached_tokens", c_size_t),
    ]


class moebius_perplexity(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("loss", c_double),
        ("error", c_double),
        ("perplexity", c_double),
        ("tokens", c_size_t),
    ]


class moebius_chat(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("messages", c_char_p),
        ("tools", c_char_p),
        ("documents", c_char_p),
        ("extra", c_char_p),
        ("add_generation_prompt", c_int32),
    ]


def declare(lib: CDLL) -> None:
    """Gives every function of the library its types."""
    lib.moebius_version.argtypes = []
    lib.moebius_version.restype = c_char_p
    lib.moebius_abi_version.argtypes = []
    lib.moebius_abi_version.restype = c_uint32
    lib.moebius_cpu.argtypes = []
    lib.moebius_cpu.restype = c_char_p
    lib.moebius_cpu_model.argtypes = []
    lib.moebius_cpu_model.restype = c_char_p
    lib.moebius_narrow_cpu.argtypes = [c_char_p]
    lib.moebius_narrow_cpu.restype = c_int
    lib.moebius_kernel_count.argtypes = []
    lib.moebius_kernel_count.restype = c_size_t
    lib.moebius_kernel_name.argtypes = [c_size_t]
    lib.moebius_kernel_name.restype = c_char_p
    lib.moebius_string_free.argtypes = [c_char_p]
    lib.moebius_string_free.restype = None
    lib.moebius_last_error.argtypes = []
    lib.moebius_last_error.restype = c_char_p
    lib.moebius_last_error_field.argtypes = [c_char_p]
    lib.moebius_last_error_field.restype = c_char_p
    lib.moebius_runtime_new.argtypes = [c_int32]
    lib.moebius_runtime_new.restype = c_void_p
    lib.moebius_runtime_new_with.argtypes = [POINTER(moebius_runtime_options)]
    lib.moebius_runtime_new_with.restype = c_void_p
    lib.moebius_runtime_free.argtypes = [c_void_p]
    lib.moebius_runtime_free.restype = None
    lib.moebius_runtime_threads.argtypes = [c_void_p]
    lib.moebius_runtime_threads.restype = c_size_t
    lib.moebius_folder_open.argtypes = [c_char_p]
    lib.moebius_folder_open.restype = c_void_p
    lib.moebius_folder_free.argtypes = [c_void_p]
    lib.moebius_folder_free.restype = None
    lib.moebius_folder_architecture.argtypes = [c_void_p]
    lib.moebius_folder_architecture.restype = c_char_p
    lib.moebius_folder_module_count.argtypes = [c_void_p]
    lib.moebius_folder_module_count.restype = c_size_t
    lib.moebius_folder_module.argtypes = [c_void_p, c_size_t, POINTER(moebius_module)]
    lib.moebius_folder_module.restype = c_int
    lib.moebius_folder_module_name.argtypes = [c_void_p, c_size_t]
    lib.moebius_folder_module_name.restype = c_char_p
    lib.moebius_folder_module_scheme.argtypes = [c_void_p, c_size_t]
    lib.moebius_folder_module_scheme.restype = c_char_p
    lib.moebius_folder_module_problem.argtypes = [c_void_p, c_size_t]
    lib.moebius_folder_module_problem.restype = c_char_p
    lib.moebius_folder_block_count.argtypes = [c_void_p]
    lib.moebius_folder_block_count.restype = c_size_t
    lib.moebius_folder_block_name.argtypes = [c_void_p, c_size_t]
    lib.moebius_folder_block_name.restype = c_char_p
    lib.moebius_folder_warning_count.argtypes = [c_void_p]
    lib.moebius_folder_warning_count.restype = c_size_t
    lib.moebius_folder_warning.argtypes = [c_void_p, c_size_t]
    lib.moebius_folder_warning.restype = c_char_p
    lib.moebius_folder_inspect_json.argtypes = [c_void_p, c_int]
    lib.moebius_folder_inspect_json.restype = c_void_p
    lib.moebius_folder_explain_json.argtypes = [c_void_p, c_char_p]
    lib.moebius_folder_explain_json.restype = c_void_p
    lib.moebius_scheme_parse.argtypes = [c_char_p]
    lib.moebius_scheme_parse.restype = c_void_p
    lib.moebius_scheme_free.argtypes = [c_void_p]
    lib.moebius_scheme_free.restype = None
    lib.moebius_scheme_family.argtypes = [c_void_p]
    lib.moebius_scheme_family.restype = c_void_p
    lib.moebius_scheme_describe.argtypes = [c_void_p]
    lib.moebius_scheme_describe.restype = c_void_p
    lib.moebius_scheme_problem.argtypes = [c_void_p, c_int]
    lib.moebius_scheme_problem.restype = c_void_p
    lib.moebius_scheme_tensor_count.argtypes = [c_void_p]
    lib.moebius_scheme_tensor_count.restype = c_size_t
    lib.moebius_scheme_tensor.argtypes = [c_void_p, c_size_t, POINTER(c_int)]
    lib.moebius_scheme_tensor.restype = c_char_p
    lib.moebius_linear_build.argtypes = [POINTER(moebius_part), c_size_t, POINTER(moebius_options)]
    lib.moebius_linear_build.restype = c_void_p
    lib.moebius_linear_load.argtypes = [c_void_p, c_char_p, POINTER(moebius_options)]
    lib.moebius_linear_load.restype = c_void_p
    lib.moebius_linear_free.argtypes = [c_void_p]
    lib.moebius_linear_free.restype = None
    lib.moebius_linear_inputs.argtypes = [c_void_p]
    lib.moebius_linear_inputs.restype = c_size_t
    lib.moebius_linear_outputs.argtypes = [c_void_p]
    lib.moebius_linear_outputs.restype = c_size_t
    lib.moebius_linear_kernel.argtypes = [c_void_p]
    lib.moebius_linear_kernel.restype = c_void_p
    lib.moebius_linear_packed_bytes.argtypes = [c_void_p]
    lib.moebius_linear_packed_bytes.restype = c_uint64
    lib.moebius_linear_device.argtypes = [c_void_p]
    lib.moebius_linear_device.restype = c_char_p
    lib.moebius_linear_run.argtypes = [c_void_p, POINTER(moebius_input), POINTER(moebius_output)]
    lib.moebius_linear_run.restype = c_int
    lib.moebius_linear_launch.argtypes = [c_void_p, POINTER(moebius_input), POINTER(moebius_output), c_void_p]
    lib.moebius_linear_launch.restype = c_int
    lib.moebius_moe_load.argtypes = [c_void_p, c_char_p, c_int, POINTER(moebius_options)]
    lib.moebius_moe_load.restype = c_void_p
    lib.moebius_moe_begin.argtypes = [POINTER(moebius_moe_spec), c_void_p, c_void_p, c_void_p, POINTER(moebius_options)]
    lib.moebius_moe_begin.restype = c_void_p
    lib.moebius_moe_set_expert.argtypes = [c_void_p, c_size_t, POINTER(moebius_tensor), c_size_t]
    lib.moebius_moe_set_expert.restype = c_int
    lib.moebius_moe_finish.argtypes = [c_void_p]
    lib.moebius_moe_finish.restype = c_void_p
    lib.moebius_moe_builder_free.argtypes = [c_void_p]
    lib.moebius_moe_builder_free.restype = None
    lib.moebius_moe_free.argtypes = [c_void_p]
    lib.moebius_moe_free.restype = None
    lib.moebius_moe_hidden.argtypes = [c_void_p]
    lib.moebius_moe_hidden.restype = c_size_t
    lib.moebius_moe_experts.argtypes = [c_void_p]
    lib.moebius_moe_experts.restype = c_size_t
    lib.moebius_moe_slots.argtypes = [c_void_p]
    lib.moebius_moe_slots.restype = c_size_t
    lib.moebius_moe_kernel.argtypes = [c_void_p]
    lib.moebius_moe_kernel.restype = c_void_p
    lib.moebius_moe_packed_bytes.argtypes = [c_void_p]
    lib.moebius_moe_packed_bytes.restype = c_uint64
    lib.moebius_moe_run.argtypes = [c_void_p, POINTER(moebius_input), POINTER(moebius_output), POINTER(c_int32), POINTER(c_float)]
    lib.moebius_moe_run.restype = c_int
    lib.moebius_moe_run_logits.argtypes = [c_void_p, POINTER(moebius_input), POINTER(moebius_input), POINTER(moebius_output), POINTER(c_int32), POINTER(c_float)]
    lib.moebius_moe_run_logits.restype = c_int
    lib.moebius_moe_run_ids.argtypes = [c_void_p, POINTER(moebius_input), POINTER(c_int32), POINTER(c_float), c_size_t, POINTER(moebius_output)]
    lib.moebius_moe_run_ids.restype = c_int
    lib.moebius_moe_device.argtypes = [c_void_p]
    lib.moebius_moe_device.restype = c_char_p
    lib.moebius_moe_launch.argtypes = [c_void_p, POINTER(moebius_input), POINTER(moebius_output), POINTER(c_int32), POINTER(c_float), c_void_p]
    lib.moebius_moe_launch.restype = c_int
    lib.moebius_moe_launch_logits.argtypes = [c_void_p, POINTER(moebius_input), POINTER(moebius_input), POINTER(moebius_output), POINTER(c_int32), POINTER(c_float), c_void_p]
    lib.moebius_moe_launch_logits.restype = c_int
    lib.moebius_moe_launch_ids.argtypes = [c_void_p, POINTER(moebius_input), POINTER(c_int32), POINTER(c_float), c_size_t, POINTER(moebius_output), c_void_p]
    lib.moebius_moe_launch_ids.restype = c_int
    lib.moebius_tokenizer_open.argtypes = [c_char_p]
    lib.moebius_tokenizer_open.restype = c_void_p
    lib.moebius_tokenizer_free.argtypes = [c_void_p]
    lib.moebius_tokenizer_free.restype = None
    lib.moebius_tokenizer_encode.argtypes = [c_void_p, c_char_p, c_size_t, c_int, POINTER(c_int32), c_size_t, POINTER(c_size_t)]
    lib.moebius_tokenizer_encode.restype = c_int
    lib.moebius_tokenizer_decode.argtypes = [c_void_p, POINTER(c_int32), c_size_t, c_int, POINTER(c_size_t)]
    lib.moebius_tokenizer_decode.restype = c_void_p
    lib.moebius_tokenizer_vocab.argtypes = [c_void_p]
    lib.moebius_tokenizer_vocab.restype = c_size_t
    lib.moebius_tokenizer_token.argtypes = [c_void_p, c_int32, POINTER(c_size_t)]
    lib.moebius_tokenizer_token.restype = c_void_p
    lib.moebius_tokenizer_id.argtypes = [c_void_p, c_char_p]
    lib.moebius_tokenizer_id.restype = c_int32
    lib.moebius_tokenizer_is_special.argtypes = [c_void_p, c_int32]
    lib.moebius_tokenizer_is_special.restype = c_int
    lib.moebius_tokenizer_has_template.argtypes = [c_void_p]
    lib.moebius_tokenizer_has_template.restype = c_int
    lib.moebius_tokenizer_template.argtypes = [c_void_p, POINTER(moebius_chat), POINTER(c_size_t)]
    lib.moebius_tokenizer_template.restype = c_void_p
    lib.moebius_tokenizer_chat.argtypes = [c_void_p, POINTER(moebius_chat), POINTER(c_int32), c_size_t, POINTER(c_size_t)]
    lib.moebius_tokenizer_chat.restype = c_int
    lib.moebius_tokenizer_answer.argtypes = [c_void_p, POINTER(moebius_chat), POINTER(c_int32), c_size_t, c_int, POINTER(c_size_t)]
    lib.moebius_tokenizer_answer.restype = c_void_p
    lib.moebius_stream_new.argtypes = [c_void_p, c_int]
    lib.moebius_stream_new.restype = c_void_p
    lib.moebius_stream_free.argtypes = [c_void_p]
    lib.moebius_stream_free.restype = None
    lib.moebius_stream_push.argtypes = [c_void_p, c_int32, POINTER(c_size_t)]
    lib.moebius_stream_push.restype = c_void_p
    lib.moebius_stream_finish.argtypes = [c_void_p, POINTER(c_size_t)]
    lib.moebius_stream_finish.restype = c_void_p
    lib.moebius_model_load.argtypes = [c_char_p, POINTER(moebius_model_options)]
    lib.moebius_model_load.restype = c_void_p
    lib.moebius_model_free.argtypes = [c_void_p]
    lib.moebius_model_free.restype = None
    lib.moebius_model_vocab.argtypes = [c_void_p]
    lib.moebius_model_vocab.restype = c_size_t
    lib.moebius_model_context.argtypes = [c_void_p]
    lib.moebius_model_context.restype = c_size_t
    lib.moebius_model_info_json.argtypes = [c_void_p]
    lib.moebius_model_info_json.restype = c_void_p
    lib.moebius_model_tokenizer.argtypes = [c_void_p]
    lib.moebius_model_tokenizer.restype = c_void_p
    lib.moebius_model_logits.argtypes = [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_float), c_size_t]
    lib.moebius_model_logits.restype = c_int
    lib.moebius_model_perplexity.argtypes = [c_void_p, POINTER(c_int32), c_size_t, c_size_t, POINTER(moebius_perplexity)]
    lib.moebius_model_perplexity.restype = c_int
    lib.moebius_engine_new.argtypes = [c_void_p, POINTER(moebius_engine_options)]
    lib.moebius_engine_new.restype = c_void_p
    lib.moebius_engine_free.argtypes = [c_void_p]
    lib.moebius_engine_free.restype = None
    lib.moebius_request_init.argtypes = [POINTER(moebius_request), c_size_t]
    lib.moebius_request_init.restype = c_int
    lib.moebius_engine_add.argtypes = [c_void_p, POINTER(moebius_request), POINTER(c_uint64)]
    lib.moebius_engine_add.restype = c_int
    lib.moebius_engine_cancel.argtypes = [c_void_p, c_uint64]
    lib.moebius_engine_cancel.restype = c_int
    lib.moebius_engine_idle.argtypes = [c_void_p]
    lib.moebius_engine_idle.restype = c_int
    lib.moebius_engine_context.argtypes = [c_void_p]
    lib.moebius_engine_context.restype = c_size_t
    lib.moebius_engine_step.argtypes = [c_void_p, POINTER(POINTER(moebius_event)), POINTER(c_size_t)]
    lib.moebius_engine_step.restype = c_int
    lib.moebius_quantize_json.argtypes = [c_char_p, moebius_progress, c_void_p]
    lib.moebius_quantize_json.restype = c_void_p
    lib.moebius_evaluate_json.argtypes = [c_char_p, moebius_progress, c_void_p]
    lib.moebius_evaluate_json.restype = c_void_p
