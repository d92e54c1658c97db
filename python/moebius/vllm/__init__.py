# SPDX-License-Identifier: Apache-2.0
"""The vLLM plugin: quantized layers of a model on a CPU run on Moebius.

vLLM finds it by the entry point `vllm.general_plugins`. `--quantization compressed-tensors` (or whatever the folder's method is) or
MOEBIUS_VLLM=off leave vLLM alone.
"""
from __future__ import annotations

import logging

TESTED = ("0.32.0",)  # versions of vLLM


def register() -> None:
    """Called by vLLM once in each of its processes; never raises."""
    log = logging.getLogger("vllm.moebius")
    try:
        from .settings import settings

        if settings().layers == "none":
            return
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return
        from vllm.model_executor.layers.quantization import register_quantization_config

        from .config import MoebiusConfig, MoebiusGptOssConfig, MoebiusStoredConfig

        register_quantization_config("moebius")(MoebiusConfig)
        register_quantization_config("moebius_gpt_oss")(MoebiusGptOssConfig)
        register_quantization_config("moebius_stored")(MoebiusStoredConfig)
    except Exception as e:  # noqa: BLE001 - whatever is wrong here must not keep vLLM from running
        log.warning("moebius: the plugin is off, as this vLLM is not what it knows (%s): %s: %s", ", ".join(TESTED), type(e).__name__, e)
