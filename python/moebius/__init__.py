# SPDX-License-Identifier: Apache-2.0
"""Runs quantized mixture-of-experts models on CPUs and, with device="cuda", on NVIDIA GPUs.

    import moebius
    llm = moebius.LLM("path/to/folder")
    print(llm.generate("It was a dark", moebius.SamplingParams(max_tokens=24))[0].outputs[0].text)

docs/python.md describes every class. Nothing is needed but the standard library; arrays of numpy, torch and whatever
speaks DLPack are used without a copy.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, List

from ._library import Error, lib, text

if TYPE_CHECKING:
    from ._threads import Threads
    from .build import MoeBuilder, MoeSpec
    from .folder import Folder, Module
    from .layers import Linear, Moe
    from .llm import (LLM, Chunk, CompletionOutput, Logprob, ModelInfo, Perplexity, RequestMetrics, RequestOutput,
                      SamplingParams)
    from .machine import Cpu, cpu, kernels
    from .parts import Part, RawTensor, Scheme, TensorNeed
    from ._quantize import evaluate, quantize
    from .tokenizer import Tokenizer

__version__ = text(lib.moebius_version())

__all__ = ["LLM", "Chunk", "CompletionOutput", "Cpu", "Error", "Folder", "Linear", "Logprob", "ModelInfo", "Module", "Moe",
           "MoeBuilder", "MoeSpec", "Part", "Perplexity", "RawTensor", "RequestMetrics", "RequestOutput", "SamplingParams",
           "Scheme", "TensorNeed", "Threads", "Tokenizer", "cpu", "evaluate", "kernels", "quantize"]

# Where the names are: a module is loaded when one of its names is first asked for.
_MODULES = {"_threads": "Threads", "build": "MoeBuilder MoeSpec", "folder": "Folder Module",
            "layers": "Linear Moe", "llm": "LLM Chunk CompletionOutput Logprob ModelInfo Perplexity RequestMetrics RequestOutput SamplingParams",
            "machine": "Cpu cpu kernels", "parts": "Part RawTensor Scheme TensorNeed", "_quantize": "evaluate quantize",
            "tokenizer": "Tokenizer"}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _PLACES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
