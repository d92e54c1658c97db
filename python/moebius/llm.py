# SPDX-License-Identifier: Apache-2.0
"""Whole models: generate, chat, stream, score. Names of calls and fields are those of vLLM's batch interface."""
from __future__ import annotations

import ctypes
import json
import operator
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._library import U64, Error, Handle, argument_error, c_path, c_text, check, knows_vllm, lib, number, one_of, real, taken, text
from ._progress import Told, bar_of
from ._threads import Threads, threads_of
from .folder import Folder
from .layers import ARITHMETIC, INT8, ROWS
from .tokenizer import Message, Tokenizer, as_json, ids_array, token_ids

Prompt = Union[str, Sequence[int], Dict[str, Any]]
FINISH = {_abi.MOEBIUS_FINISH_STOP: "stop", _abi.MOEBIUS_FINISH_LENGTH: "length", _abi.MOEBIUS_FINISH_CONTEXT: "length",
          _abi.MOEBIUS_FINISH_CANCELLED: "cancelled", _abi.MOEBIUS_FINISH_ERROR: "error"}


# What may be said of sampling, from and to: the library's own limits. A top_k of -1 is none, as others write it; None asks for no
# log-probabilities.
REAL = _abi.SAMPLING_REAL
WHOLE = {"max_tokens": (0, 2**63 - 1), "seed": U64, **_abi.SAMPLING_WHOLE, "top_k": (-1, _abi.SAMPLING_WHOLE["top_k"][1]),
         "logprobs": (0, _abi.SAMPLING_WHOLE["logprobs"][1])}


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and when an answer ends; None: what the folder's generation_config.json says."""

    max_tokens: Optional[int] = None
    temperature: Optional[float] = None
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    seed: Optional[int] = None
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    ignore_eos: bool = False
    logprobs: Optional[int] = None
    min_tokens: int = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    n: int = 1
    # The form of the answer, one of them at most: a JSON schema (a dict or its text), a regular expression that all of the answer
    # matches, or a list of texts.
    json_schema: Union[None, str, bool, Dict[str, Any]] = None
    regex: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    # Tokens whose logit is so many standard deviations of all logits below the greatest are dropped; 0 or less: none.
    top_n_sigma: Optional[float] = None

    def __post_init__(self) -> None:
        for name, (low, high) in REAL.items():
            value = getattr(self, name)
            if value is not None and not low <= real(value, name) <= high:
                raise argument_error(f"{name} is {value!r:.40}; expected {low} to {high}", name)
        for name, limits in WHOLE.items():
            if getattr(self, name) is not None:
                number(getattr(self, name), name, *limits)


SamplingParams.__init__ = knows_vllm(SamplingParams.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability, its rank (1: the likeliest; None: not among those asked for) and its text."""

    logprob: float
    rank: Optional[int]
    decoded_token: str


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: List[int] = field(default_factory=list)
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None
    message: Optional[Dict[str, Any]] = None  # of a chat with tools: content, reasoning_content, tool_calls


@dataclass
class RequestMetrics:
    """Seconds until the first token, until the last, and tokens per second in between."""

    prompt_seconds: float = 0.0
    seconds: float = 0.0
    tokens_per_second: float = 0.0


@dataclass
class RequestOutput:
    """A prompt with its answers."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool = False
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


@dataclass(frozen=True)
class Chunk:
    """What one step brought: text, a token (None with the end), the reason of the end (None before)."""

    text: str
    token_id: Optional[int]
    logprob: Optional[float]
    finish_reason: Optional[str]


@dataclass(frozen=True)
class Perplexity:
    """Mean loss over tokens, and its exponential."""

    loss: float
    perplexity: float
    tokens: int


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is."""

    architecture: str
    layers: int
    vocab: int
    context: int
    packed_bytes: int
    kv_bytes_per_token: int
    threads: int
    kernels: List[str]
    warnings: List[str]


@dataclass(frozen=True)
class _Event:
    choice: int
    token: int
    logprob: float
    top: List[Tuple[int, float]]
    text: str
    finish: int
    stop: Union[None, int, str]
    error: Optional[str]


def _copied(e: _abi.moebius_event) -> _Event:
    raw = ctypes.string_at(ctypes.c_void_p.from_buffer(e, _abi.moebius_event.text.offset).value or 0, e.text_bytes) if e.text_bytes else b""
    stop = text(e.stop_text) if e.stop_text else e.stop_token if e.stop_token >= 0 else None
    return _Event(e.choice, e.token, e.logprob, [(e.top[i].token, e.top[i].logprob) for i in range(e.tops)],
                  text(raw), e.finish, stop, text(e.error) if e.error else None)


class LLM(Handle):
    """A whole model, loaded. Use it in a with-statement, or close() it, to free its memory at once.

    activations: "int8" runs integer weights alone with dynamic int8 rows (approximate); dtype: "auto", "bf16", "f16" or "f32"; context: longest sequence (0: what the model allows); parallel: sequences that run
    at once; progress: True for a bar, or a class called as tqdm is; pack_dir: a folder of packed weights, which the first load
    writes and later ones map; speculate: "lookup", "mtp" or "off": tokens that run ahead where that is faster, with the same
    answers; device: "cpu", "cuda" or "cuda:1"; experts, with a GPU: "cpu", or "auto": those that do not fit on the CPU;
    gpu_gib: memory of the GPU that may be used (None: what is free, less 1 GiB).
    """

    @knows_vllm
    def __init__(self, model: Union[str, "os.PathLike[str]"], *, threads: Union[None, int, Threads] = None,
                 kernel: Optional[str] = None, arithmetic: str = "declared", int8: str = "declared",
                 activations: str = "declared", dtype: str = "auto", kv_dtype: str = "auto",
                 kv_gib: Optional[float] = None, context: int = 0, parallel: int = 16, progress: Any = None,
                 pack_dir: Union[None, str, "os.PathLike[str]"] = None, speculate: str = "lookup", device: str = "cpu",
                 experts: Optional[str] = None, gpu_gib: Optional[float] = None) -> None:
        path, (count, runtime), told = c_path(model, "model"), threads_of(threads), Told(bar_of(progress))
        length, sequences = number(context, "context"), number(parallel, "parallel", 1, 65536)
        kv_bytes = 0 if kv_gib is None else real(kv_gib, "kv_gib") * 2**30
        if not 0 <= kv_bytes < 2**63:
            raise argument_error(f"kv_gib is {kv_gib}; expected 0 or more", "kv_gib")
        gpu_bytes = 0 if gpu_gib is None else real(gpu_gib, "gpu_gib") * 2**30
        if not 0 <= gpu_bytes < 2**63:
            raise argument_error(f"gpu_gib is {gpu_gib}; expected 0 or more", "gpu_gib")
        options = _abi.moebius_model_options(
            ctypes.sizeof(_abi.moebius_model_options), count, None if kernel is None else c_text(kernel, "kernel"),
            one_of(arithmetic, ARITHMETIC, "arithmetic"), one_of(int8, INT8, "int8"), c_text(dtype, "dtype"), c_text(kv_dtype, "kv_dtype"),
            length, runtime, told.callback, None, one_of(activations, ROWS, "activations"),
            None if pack_dir is None else c_path(pack_dir, "pack_dir"), c_text(speculate, "speculate"),
            c_text(device, "device"), None if experts is None else c_text(experts, "experts"), int(gpu_bytes))
        self._path = os.fspath(model)
        self._own(told.finished(lib.moebius_model_load(path, ctypes.byref(options)), lib.moebius_model_free), lib.moebius_model_free)
        self._engine = _Engine(self._pointer, length, sequences, int(kv_bytes))
        self._tokenizer: Optional[Tokenizer] = None

    def close(self) -> None:
        """Frees the model; using it afterwards is an Error."""
        self._engine.close()
        super().close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer; an Error where it has none."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer._of_model(self._pointer)
        return self._tokenizer

    @property
    def folder(self) -> Folder:
        """The folder the model came from."""
        return Folder(self._path)

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return ModelInfo(**json.loads(taken(lib.moebius_model_info_json(self._pointer))))

    @knows_vllm
    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
                 *, progress: Any = None) -> List[RequestOutput]:
        """Continues prompts: a text, token ids, {"prompt_token_ids": [...]}, or a list of them; answers keep the order."""
        many = self._prompts(prompts)
        return self._run(many, sampling_params, progress)

    @knows_vllm
    def chat(self, messages: Union[Sequence[Message], Sequence[Sequence[Message]]],
             sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None, *, tools: Optional[Sequence[Any]] = None,
             tool_choice: str = "auto", documents: Optional[Sequence[Any]] = None, add_generation_prompt: bool = True,
             template_args: Optional[Dict[str, Any]] = None, progress: Any = None) -> List[RequestOutput]:
        """Answers one conversation (a list of messages) or several, by the folder's chat template.

        With tools, an answer's message has the calls, in the form of OpenAI's chat; it can be appended to the messages.
        tool_choice: "auto", "required" (the answer is calls), or the name of the tool to call.
        """
        one = not isinstance(messages, (list, tuple)) or not messages or isinstance(messages[0], dict)
        chats: Sequence[Any] = [messages] if one else messages
        prompts = [self._chat_prompt(c, tools, documents, add_generation_prompt, template_args) for c in chats]
        outputs = self._run(prompts, sampling_params, progress, _Tools.of(tools, tool_choice))
        for chat, output in zip(chats, outputs) if tools else ():
            for answer in output.outputs:
                answer.message = self.tokenizer.chat_answer(
                    chat, answer.token_ids, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt,
                    template_args=template_args, ended=answer.finish_reason == "stop")
                if answer.finish_reason == "stop" and answer.message.get("tool_calls"):
                    answer.finish_reason = "tool_calls"
        return outputs

    @knows_vllm
    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None) -> Iterator[Chunk]:
        """The continuation of one prompt as it comes; closing the iterator cancels it."""
        many = self._prompts(prompt)
        if len(many) != 1:
            raise argument_error(f"{len(many)} prompts; a stream has one", "prompt")
        return self._stream(many[0], sampling_params)

    @knows_vllm
    def stream_chat(self, messages: Sequence[Message], sampling_params: Optional[SamplingParams] = None, *,
                    tools: Optional[Sequence[Any]] = None, tool_choice: str = "auto", documents: Optional[Sequence[Any]] = None,
                    add_generation_prompt: bool = True, template_args: Optional[Dict[str, Any]] = None) -> Iterator[Chunk]:
        """The answer of a conversation as it comes; calls are part of the text."""
        prompt = self._chat_prompt(messages, tools, documents, add_generation_prompt, template_args)
        return self._stream(prompt, sampling_params, _Tools.of(tools, tool_choice))

    def logits(self, tokens: Sequence[int]) -> Any:
        """Logits of every position, f32 [len, vocab]: a numpy array where numpy is installed, else a memoryview."""
        ids = token_ids(tokens, "tokens")
        vocab = int(lib.moebius_model_vocab(self._pointer))
        room = len(ids) * vocab
        data = (ctypes.c_float * max(1, room))()
        check(lib.moebius_model_logits(self._pointer, ids_array(ids), len(ids), data, room))
        try:
            import numpy
        except ImportError:
            return memoryview(data).cast("B").cast("f", [len(ids), vocab])
        return numpy.ctypeslib.as_array(data).reshape(len(ids), vocab)

    def perplexity(self, text_or_tokens: Union[str, Sequence[int]], *, context: int = 512) -> Perplexity:
        """How well a text is predicted, in windows of `context` inputs, as the tool's perplexity command measures it."""
        ids = self.tokenizer.encode(text_or_tokens, add_special=False) if isinstance(text_or_tokens, str) else \
            token_ids(text_or_tokens, "text_or_tokens")
        to = _abi.moebius_perplexity(ctypes.sizeof(_abi.moebius_perplexity))
        check(lib.moebius_model_perplexity(self._pointer, ids_array(ids), len(ids), number(context, "context"), ctypes.byref(to)))
        return Perplexity(to.loss, to.perplexity, to.tokens)

    # --- the rest is ours
    def _prompts(self, prompts: Any) -> List[Tuple[Optional[str], List[int]]]:
        if isinstance(prompts, (str, dict)):
            return [self._prompt(prompts)]
        if isinstance(prompts, bytes) or not hasattr(prompts, "__iter__"):
            raise argument_error(f"prompts is a {type(prompts).__name__}; expected a text, token ids, or a list of them", "prompts")
        many = list(prompts)
        single = len(many) > 0 and not hasattr(many[0], "__len__")  # token ids
        return [self._prompt(p) for p in ([many] if single else many)]

    def _prompt(self, p: Any) -> Tuple[Optional[str], List[int]]:
        if isinstance(p, str):
            return p, self.tokenizer.encode(p)
        if isinstance(p, dict):
            if "prompt_token_ids" in p:
                return p.get("prompt"), token_ids(p["prompt_token_ids"], "prompts")
            if isinstance(p.get("prompt"), str):
                return p["prompt"], self.tokenizer.encode(p["prompt"])
            raise argument_error("a prompt has neither prompt_token_ids nor prompt", "prompts")
        return None, token_ids(p, "prompts")

    def _chat_prompt(self, messages: Any, tools: Any, documents: Any, add: bool, extra: Any) -> Tuple[Optional[str], List[int]]:
        ids = self.tokenizer.apply_chat_template(messages, tools=tools, documents=documents, add_generation_prompt=add,
                                                 template_args=extra)
        assert isinstance(ids, list)
        return None, ids

    def _run(self, prompts: List[Tuple[Optional[str], List[int]]], params: Any, progress: Any,
             tools: "Optional[_Tools]" = None) -> List[RequestOutput]:
        if isinstance(params, (list, tuple)):
            each = [_params(p) for p in params]
        else:
            each = [_params(params)] * len(prompts)
        if len(each) != len(prompts):
            raise argument_error(f"{len(each)} sampling parameters for {len(prompts)} prompts", "sampling_params")
        bar = bar_of(progress)
        bar = bar(total=len(prompts), desc="prompts", unit="prompt", unit_scale=False) if bar else None
        ids: List[int] = []
        start = time.perf_counter()
        outputs: List[RequestOutput] = []
        try:
            for (said, tokens), p in zip(prompts, each):
                ids.append(self._engine.add(tokens, p, tools))
                answers = [CompletionOutput(i, cumulative_logprob=0.0 if p.logprobs is not None else None,
                                            logprobs=[] if p.logprobs is not None else None) for i in range(p.n)]
                outputs.append(RequestOutput(str(ids[-1]), said, tokens, answers))
            for i, output, p in zip(ids, outputs, each):
                self._finish(i, output, start)
                if bar:
                    bar.update(1)
        finally:
            for i in ids:
                self._engine.forget(i)
            if bar:
                bar.close()
        return outputs

    def _finish(self, request: int, output: RequestOutput, start: float) -> None:
        first, left = 0.0, len(output.outputs)
        while left:
            for e in self._engine.events(request):
                if e.error is not None:
                    raise Error(e.error, kind="file", file=self._path)
                if e.token >= 0 and first == 0.0:
                    first = time.perf_counter()
                self._take(e, output.outputs[e.choice])
                left -= e.finish != _abi.MOEBIUS_FINISH_NONE
        end = time.perf_counter()
        count = sum(len(o.token_ids) for o in output.outputs)
        output.finished = True
        output.metrics = RequestMetrics(max(0.0, first - start), end - start, (count - 1) / (end - first) if count > 1 and end > first else 0.0)

    def _take(self, e: _Event, answer: CompletionOutput) -> None:
        answer.text += e.text
        if e.token >= 0:
            answer.token_ids.append(e.token)
            if answer.logprobs is not None:
                answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + e.logprob
                ranks = {t: (l, i + 1) for i, (t, l) in enumerate(e.top)}
                entry = {e.token: (e.logprob, ranks.get(e.token, (0.0, None))[1]), **ranks}
                answer.logprobs.append({t: Logprob(l, r, self._shown(t)) for t, (l, r) in entry.items()})
        if e.finish != _abi.MOEBIUS_FINISH_NONE:
            answer.finish_reason, answer.stop_reason = FINISH[e.finish], e.stop

    def _shown(self, token: int) -> str:
        try:
            return self.tokenizer.decode([token])
        except Error:
            return ""

    def _stream(self, prompt: Tuple[Optional[str], List[int]], given: Optional[SamplingParams],
                tools: "Optional[_Tools]" = None) -> Iterator[Chunk]:
        params = _params(given)
        if params.n != 1:
            raise argument_error(f"n is {params.n}; a stream has one answer", "n")
        request = self._engine.add(prompt[1], params, tools)

        def chunks() -> Iterator[Chunk]:
            try:
                while True:
                    for e in self._engine.events(request):
                        if e.error is not None:
                            raise Error(e.error, kind="file", file=self._path)
                        end = None if e.finish == _abi.MOEBIUS_FINISH_NONE else FINISH[e.finish]
                        yield Chunk(e.text, e.token if e.token >= 0 else None, e.logprob if params.logprobs is not None else None, end)
                        if end is not None:
                            return
            finally:
                self._engine.forget(request)

        return chunks()


def _params(given: Any) -> SamplingParams:
    if given is not None and not isinstance(given, SamplingParams):
        raise argument_error(f"sampling_params is a {type(given).__name__}; expected SamplingParams", "sampling_params")
    return given or SamplingParams()


@dataclass(frozen=True)
class _Tools:
    """What an answer may call."""

    functions: bytes
    choice: bytes

    @staticmethod
    def of(tools: Any, choice: Any) -> "Optional[_Tools]":
        if not tools:
            return None
        given = as_json(tools, "tools")
        return _Tools(given, c_text(choice, "tool_choice")) if given else None


class _Engine(Handle):
    """Steps of all requests together; each request takes its own events."""

    _title = "LLM"  # whose part it is

    def __init__(self, model: int, context: int, parallel: int, kv_bytes: int) -> None:
        options = _abi.moebius_engine_options(ctypes.sizeof(_abi.moebius_engine_options), context, parallel, kv_bytes, 0.0)
        self._own(lib.moebius_engine_new(model, ctypes.byref(options)), lib.moebius_engine_free)
        self._lock = threading.Lock()
        self._waiting: Dict[int, List[_Event]] = {}
        # What the last step brought, and how much of it was handed out: Ctrl-C may come in between.
        self._events, self._count, self._taken = ctypes.POINTER(_abi.moebius_event)(), ctypes.c_size_t(), 0

    def add(self, prompt: List[int], p: SamplingParams, tools: Optional[_Tools] = None) -> int:
        r = _abi.moebius_request()
        check(lib.moebius_request_init(ctypes.byref(r), ctypes.sizeof(r)))
        tokens = ids_array(prompt)
        r.prompt, r.prompt_tokens = tokens, len(prompt)
        for name in REAL:
            if getattr(p, name) is not None:
                setattr(r, name, float(getattr(p, name)))
        for name in WHOLE:
            if getattr(p, name) is not None:
                setattr(r, name, operator.index(getattr(p, name)))
        r.top_k = max(0, r.top_k) if p.top_k is not None else r.top_k  # vLLM writes -1 for all
        if p.stop is not None and not isinstance(p.stop, (str, list, tuple)):
            raise argument_error(f"stop is {p.stop!r:.40}; expected a text or a list of them", "stop")
        stops = [c_text(s, "stop") for s in ([p.stop] if isinstance(p.stop, str) else p.stop or [])]
        texts = (ctypes.c_char_p * max(1, len(stops)))(*stops)
        ends = token_ids(p.stop_token_ids or [], "stop_token_ids")
        end_array = ids_array(ends)
        r.stop, r.stops, r.stop_tokens, r.stop_token_count = texts, len(stops), end_array, len(ends)
        r.ignore_eos, r.include_stop, r.skip_special = bool(p.ignore_eos), bool(p.include_stop_str_in_output), bool(p.skip_special_tokens)
        schema = p.json_schema if isinstance(p.json_schema, str) else "" if p.json_schema is None else json.dumps(p.json_schema)
        r.json_schema, r.regex = c_text(schema, "json_schema"), c_text(p.regex or "", "regex")
        if isinstance(p.choice, str):
            raise argument_error("choice is a text; expected a list of them", "choice")
        choices = [c_text(s, "choice") for s in p.choice or []]
        choice_texts = (ctypes.c_char_p * max(1, len(choices)))(*choices)
        r.choice, r.choices = choice_texts, len(choices)
        if tools is not None:
            r.tools, r.tool_choice = tools.functions, tools.choice
        request = ctypes.c_uint64()
        with self._lock:
            check(lib.moebius_engine_add(self._pointer, ctypes.byref(r), ctypes.byref(request)))
            self._waiting[request.value] = []
        return request.value

    def events(self, request: int) -> List[_Event]:
        """What has come for a request; steps until something has."""
        while True:
            with self._lock:
                if request not in self._waiting:
                    raise Error("the request was given up", kind="state")
                self._hand_out()
                if self._waiting[request]:
                    found, self._waiting[request] = self._waiting[request], []
                    return found
                self._taken = self._count.value = 0
                check(lib.moebius_engine_step(self._pointer, ctypes.byref(self._events), ctypes.byref(self._count)))

    def _hand_out(self) -> None:
        while self._taken < self._count.value:
            event = self._events[self._taken]
            waiting = self._waiting.get(event.id)
            self._taken += 1
            if waiting is not None:
                waiting.append(_copied(event))

    def close(self) -> None:
        """Frees the engine, and with it the events that were not handed out."""
        with self._lock:
            self._count.value = 0
            super().close()

    def forget(self, request: int) -> None:
        """Ends a request that may still run."""
        with self._lock:
            if self._waiting.pop(request, None) is not None and self._finalizer.alive:
                lib.moebius_engine_cancel(self._handle, request)
