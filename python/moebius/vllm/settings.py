# SPDX-License-Identifier: Apache-2.0
"""What the user said: MOEBIUS_VLLM, or --additional-config '{"moebius": {...}}', which counts more."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Dict, Optional

CHOICES = {"layers": ("all", "moe", "none"), "int8": ("declared", "vllm"), "threads": ("openmp", "own"), "routing": ("moebius", "vllm")}


@dataclass(frozen=True)
class Settings:
    """layers: which kinds are taken over; int8: how dynamic int8 rows are scaled; threads: whose compute; routing: who does plain softmax routing."""

    layers: str = "all"
    int8: str = "declared"
    kernel: Optional[str] = None
    threads: str = "openmp"
    routing: str = "moebius"


def parse(given: Dict[str, Any], base: Settings = Settings()) -> Settings:
    """Throws ValueError naming the field."""
    known = {f.name for f in fields(Settings)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"moebius: setting {name!r} is not known; expected {', '.join(sorted(known))}")
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"moebius: {name} is {value!r}; expected {', '.join(CHOICES[name])}")
    return replace(base, **given)


@lru_cache(maxsize=None)
def settings() -> Settings:
    """Those of the environment."""
    text = os.environ.get("MOEBIUS_VLLM", "").strip()
    if text == "off":
        return Settings(layers="none")
    return parse(json.loads(text)) if text else Settings()


def current() -> Settings:
    """Those of the model that is being built."""
    from vllm.config import get_current_vllm_config

    additional = getattr(get_current_vllm_config(), "additional_config", None)
    own = additional.get("moebius") if isinstance(additional, dict) else None
    return parse(own, settings()) if own else settings()
