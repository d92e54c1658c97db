# SPDX-License-Identifier: Apache-2.0
"""What the library runs on, and what it has for that."""
from __future__ import annotations

from dataclasses import dataclass
from typing import List

from ._library import lib, text


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
