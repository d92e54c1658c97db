# SPDX-License-Identifier: Apache-2.0
"""Quantization methods: vLLM's configurations with our layers where the library runs the scheme. "moebius" for compressed-tensors,
"moebius_gpt_oss" for GPT-OSS, "moebius_stored" for the other methods."""
from __future__ import annotations

import copy
import json
import os
from typing import Any, Dict, List, Optional

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from .. import Scheme
from .._library import Error
from . import settings
from .linear import MoebiusLinearMethod
from .loading import DTYPES, log
from .moe import FUSED, MoebiusMoeMethod
from .stored import METHODS, StoredFolder, opened

_said: "set[str]" = set()


def _left_to_vllm(why: str) -> None:
    if why not in _said:
        _said.add(why)
        log.info("moebius: left to vLLM: %s", why)


class MoebiusConfig(CompressedTensorsConfig):
    """Pickled into vLLM's processes, so it stands at the top of its module."""

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Dict[str, Any], user_quant: Optional[str], hf_config: Any = None) -> Optional[str]:
        ours = hf_quant_cfg.get("quant_method") in ("compressed-tensors", "compressed_tensors")
        return "moebius" if ours and user_quant in (None, "moebius") else None

    @classmethod
    def _quantization_scheme_map_from_config(cls, config: Dict[str, Any]) -> Dict[str, Any]:
        """Keeps every group as it is written, and hides from vLLM the order of columns that it refuses."""
        shown = copy.deepcopy(config)
        for group in shown.get("config_groups", {}).values():
            if (group.get("weights") or {}).get("actorder") in ("group", "dynamic"):
                group["weights"]["actorder"] = None
        schemes: Dict[str, Any] = super()._quantization_scheme_map_from_config(config=shown)
        for group in config.get("config_groups", {}).values():
            raw = {k: v for k, v in group.items() if k != "targets"}
            if raw.get("format") is None and config.get("format") not in (None, "mixed-precision"):
                raw["format"] = config["format"]
            raw["version"] = config.get("version")
            for target in group["targets"]:
                if target in schemes:
                    schemes[target]["moebius"] = raw
        return schemes

    def _scheme(self, layer: torch.nn.Module, name: str, expert: bool) -> Optional[Scheme]:
        """That of a module, None where it is dense or not ours to run."""
        try:
            found = self.get_scheme_dict(layer, name)
        except ValueError:
            return None  # parts that differ, or a name that vLLM cannot place: its own words are better
        if not found or found.get("moebius") is None:
            return None
        try:
            scheme = Scheme({k: v for k, v in found["moebius"].items() if v is not None})
            problem = scheme.problem(expert=expert)
        except Error as e:
            problem = str(e)
        if problem:
            _left_to_vllm(problem)
            return None
        return scheme

    def _experts(self, layer: torch.nn.Module, prefix: str, chosen: settings.Settings) -> Optional[MoebiusMoeMethod]:
        if type(layer).weight_loader is not RoutedExperts.weight_loader and type(layer).__name__ not in FUSED:
            _left_to_vllm(f"{type(layer).__name__}, which loads experts in a way of its own")
            return None
        self._add_fused_moe_to_target_scheme_map()
        names = [layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name or layer.ckpt_gate_proj_name, layer.ckpt_down_proj_name]
        schemes: List[Scheme] = []
        for name in names:
            scheme = self._scheme(layer, f"{prefix}.0.{name}", expert=True)
            if scheme is None:
                return None
            schemes.append(scheme)
        return MoebiusMoeMethod.of_schemes(layer, schemes, chosen)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        chosen = settings.current()
        if self.transform_config is None and chosen.layers != "none":
            if isinstance(layer, RoutedExperts) and layer.params_dtype in DTYPES:
                method: Any = self._experts(layer, prefix, chosen)
                if method is not None:
                    return method
            elif chosen.layers == "all" and (isinstance(layer, LinearBase) or
                                             (isinstance(layer, ParallelLMHead) and getattr(layer, "tp_size", 1) == 1)):
                scheme = self._scheme(layer, prefix, expert=False)
                if scheme is not None:
                    return MoebiusLinearMethod.of_scheme(scheme, chosen)
        return super().get_quant_method(layer, prefix)


class MoebiusGptOssConfig(GptOssMxfp4Config):
    """GPT-OSS as it was published: its experts are MXFP4 without quantized activations; everything else is dense and vLLM's."""

    SCHEME = {"weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}, "format": "mxfp4-pack-quantized"}

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: Optional[str], hf_config: Any = None) -> Optional[str]:
        ours = super().override_quantization_method(hf_quant_cfg, user_quant, hf_config)
        return "moebius_gpt_oss" if ours and user_quant in (None, "moebius_gpt_oss") else None

    @classmethod
    def get_supported_act_dtypes(cls) -> List[torch.dtype]:
        return list(DTYPES)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        chosen = settings.current()
        if isinstance(layer, RoutedExperts) and chosen.layers != "none" and layer.params_dtype in DTYPES:
            parallel = layer.moe_config.moe_parallel_config
            if parallel.tp_size == 1 and parallel.ep_size == 1:
                return MoebiusMoeMethod.of_schemes(layer, [Scheme(self.SCHEME)] * 3, chosen)
            _left_to_vllm("GPT-OSS's experts on several ranks, which vLLM cuts before a layer sees them")
        return super().get_quant_method(layer, prefix)


class MoebiusStoredConfig(QuantizationConfig):
    """Native FP8, ModelOpt, GPTQ, AWQ, AutoRound, Quark, FBGEMM: whether and how a module is quantized, the folder itself says."""

    def __init__(self, section: Dict[str, Any]) -> None:
        super().__init__()
        self.section, self.path = section, ""

    def get_name(self) -> str:
        return "moebius_stored"

    @classmethod
    def get_supported_act_dtypes(cls) -> List[torch.dtype]:
        return list(DTYPES)

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> List[str]:
        return []

    @classmethod
    def from_config(cls, config: Dict[str, Any]) -> "MoebiusStoredConfig":
        return cls(dict(config))

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: Any, user_quant: Optional[str], hf_config: Any = None) -> Optional[str]:
        ours = isinstance(hf_quant_cfg, dict) and str(hf_quant_cfg.get("quant_method", "")).lower() in METHODS
        return "moebius_stored" if ours and user_quant in (None, "moebius_stored") else None

    @staticmethod
    def get_checkpoint_weight_mapper() -> Any:
        from vllm.model_executor.models.utils import WeightsMapper

        return WeightsMapper()  # GPTQ's g_idx counts

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: Optional[str] = None) -> None:
        self.path = model_name
        if not os.path.exists(model_name):
            from huggingface_hub import snapshot_download

            self.path = snapshot_download(model_name, revision=revision, allow_patterns=["*.json", "*.safetensors"])

    def _stored(self) -> StoredFolder:
        return opened(self.path, json.dumps(self.section))

    def _vllms_own(self, layer: torch.nn.Module, prefix: str) -> Any:
        own = get_quantization_config(self.section["quant_method"]).from_config(self.section)
        own.packed_modules_mapping = self.packed_modules_mapping
        return own.get_quant_method(layer, prefix)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        chosen = settings.current()
        experts, linear = isinstance(layer, RoutedExperts), isinstance(layer, LinearBase)
        head = isinstance(layer, ParallelLMHead)
        if not (experts or linear or head):
            return None
        try:
            if experts:
                names = [layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name or layer.ckpt_gate_proj_name, layer.ckpt_down_proj_name]
                matrices = self._stored().expert(prefix, 0, names)
            else:
                matrices = self._stored().parts(prefix, self.packed_modules_mapping)
        except Error as e:
            _left_to_vllm(str(e))
            return self._vllms_own(layer, prefix)
        if all(m.scheme is None for m in matrices):
            return UnquantizedFusedMoEMethod(layer.moe_config) if experts else UnquantizedLinearMethod() if linear else None
        takes = chosen.layers == "all" or (experts and chosen.layers == "moe")
        if not takes or (head and getattr(layer, "tp_size", 1) != 1) or (experts and layer.params_dtype not in DTYPES):
            return self._vllms_own(layer, prefix)
        return MoebiusMoeMethod(layer, matrices, chosen) if experts else MoebiusLinearMethod(matrices, chosen)
