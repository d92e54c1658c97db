# SPDX-License-Identifier: Apache-2.0
"""Runs quantized mixture-of-experts models from compressed-tensors folders on CPUs.

    import moebius
    llm = moebius.LLM("path/to/folder")
    print(llm.generate("It was a dark", moebius.SamplingParams(max_tokens=24))[0].outputs[0].text)

docs/python.md describes every class. Nothing is needed but the standard library; arrays of numpy, torch and whatever
speaks DLPack are used without a copy.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import List

from ._library import Error, lib, text
from ._threads import Threads
from .build import MoeBuilder, MoeSpec, Part, RawTensor, Scheme, TensorNeed
from .folder import Folder, Module
from .layers import Linear, Moe
from .llm import (LLM, Chunk, CompletionOutput, Logprob, ModelInfo, Perplexity, RequestMetrics, RequestOutput,
                  SamplingParams)
from .tokenizer import Tokenizer

__version__ = text(lib.moebius_version())

__all__ = ["LLM", "Chunk", "CompletionOutput", "Cpu", "Error", "Folder", "Linear", "Logprob", "ModelInfo", "Module", "Moe",
           "MoeBuilder", "MoeSpec", "Part", "Perplexity", "RawTensor", "RequestMetrics", "RequestOutput", "SamplingParams",
           "Scheme", "TensorNeed", "Threads", "Tokenizer", "cpu", "kernels"]


@dataclass(frozen=True)
class Cpu:
    """This machine's CPU: its name, the features that kernels are chosen by, and both architecture and features in words."""

    model: str
    features: List[str]
    description: str


def cpu() -> Cpu:
    """The CPU that the kernels are chosen for."""
    said = text(lib.moebius_cpu())
    return Cpu(text(lib.moebius_cpu_model()), said.partition(": ")[2].split(), said)


def kernels() -> List[str]:
    """Every kernel of the library, in the order of preference."""
    return [text(lib.moebius_kernel_name(i)) for i in range(lib.moebius_kernel_count())]
