# SPDX-License-Identifier: Apache-2.0
"""Threads inside vLLM: its OpenMP team, or our own on the CPUs that vLLM bound that team to.

vLLM pins its main thread to one CPU, so a pool that looked at the thread's affinity would put all its threads there.
"""
from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import List, Optional

import torch

from .. import Threads
from .._library import Error


def bound_cpus() -> Optional[List[int]]:
    """The CPU list in the variables that vLLM sets for its OpenMP runtime."""
    for name in ("GOMP_CPU_AFFINITY", "OMP_PLACES", "KMP_AFFINITY"):
        text = os.environ.get(name, "")
        if name == "KMP_AFFINITY":
            found = re.search(r"proclist=\[([\d,]+)\]", text)
            text = found.group(1) if found else ""
        if re.fullmatch(r"[\d\s,{}]+", text):
            cpus = [int(n) for n in re.findall(r"\d+", text)]
            if cpus and len(set(cpus)) == len(cpus):
                return cpus
    return None


@lru_cache(maxsize=None)
def threads(kind: str) -> Threads:
    """One pool for all layers of the process."""
    if kind == "openmp":
        try:
            return Threads(torch.get_num_threads(), backend="openmp")
        except Error:
            pass  # no OpenMP runtime that we know
    cpus = bound_cpus()
    return Threads(cpus=cpus) if cpus else Threads(torch.get_num_threads())
