# SPDX-License-Identifier: Apache-2.0
"""vLLM's routed experts on moebius::moe: an expert is packed when its last tensor came."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from .. import MoeBuilder, MoeSpec, Scheme
from .._library import Error
from .loading import DTYPES, awaited, register_empty, suffixes, take_over, tally
from .settings import Settings
from .stored import Matrix
from .threads import threads


# Classes of vLLM's that hand gate and up over as one matrix with alternating rows, of one expert or of all.
FUSED = ("GptOssRoutedExperts",)


class Experts:
    """The tensors of a layer's experts as they come."""

    def __init__(self, layer: torch.nn.Module, matrices: List[Matrix], settings: Settings, hidden: int, dtype: torch.dtype) -> None:
        config = layer.moe_config
        schemes = [m.scheme for m in matrices]
        parallel = config.moe_parallel_config
        activation = config.activation.value.replace("_uninterleave", "")
        self.gated, self.fused = bool(config.is_act_and_mul), type(layer).__name__ in FUSED
        self.layer, self.name, self.has_bias = layer, layer.layer_name, bool(config.has_bias)
        expert_map = layer.expert_map
        spec = MoeSpec(hidden, config.intermediate_size_per_partition * parallel.tp_size, config.num_experts, layer.top_k,
                       name=self.name, activation=activation, limit=layer.swiglu_limit, renormalize=bool(layer.renormalize),
                       expert_map=None if expert_map is None else [int(e) for e in expert_map])
        if activation == "swigluoai" and spec.limit is None:
            spec.limit = 7.0  # what vLLM's function of that name does
        if self.fused:
            spec.gate_up_step = 2
        if layer.swiglu_alpha is not None:
            spec.alpha, spec.beta = layer.swiglu_alpha, 1.0 if layer.swiglu_beta is None else layer.swiglu_beta
        self.builder = MoeBuilder(spec, gate=schemes[0] if self.gated else None, up=schemes[1], down=schemes[2],
                                  threads=threads(settings.threads), dtype=DTYPES[dtype], int8=settings.int8, kernel=settings.kernel,
                                  tp=parallel.tp_size, tp_rank=parallel.tp_rank)
        self.projections = {"w1": "gate" if self.gated else "up", "w3": "up", "w2": "down"}
        if self.fused:
            self.projections = {"gpt_oss_w13": "gate_up", "gpt_oss_w2": "down"}
        of = dict(zip(("gate", "up", "down"), matrices))
        of["gate_up"] = of["up"]
        self.awaited = {f"{p}.{s}" for p in sorted(set(self.projections.values()) if self.gated else {"up", "down"})
                        for s in (of[p].awaited | ({"bias"} if self.has_bias else set()))}
        # ModelOpt: an expert that saw no token has no input_scale, or 0; it takes the largest of its layer, as a folder does.
        self.stored = bool(matrices[1].name)
        self.largest: Dict[str, torch.Tensor] = {}
        self.pending: Dict[int, Dict[str, torch.Tensor]] = {}
        self.packed: set[int] = set()

    def load(self, param: torch.nn.Parameter, loaded_weight: torch.Tensor, weight_name: str, shard_id: Any = None,
             expert_id: Optional[int] = None, return_success: bool = False) -> Optional[bool]:
        if self.fused and shard_id is None and expert_id is None:  # of all experts
            part = "w13" if ".w13_" in weight_name else "w2"
            for expert in range(len(loaded_weight)):
                self.load(param, loaded_weight[expert], weight_name, f"gpt_oss_{part}", expert)
            return True if return_success else None
        if shard_id not in self.projections or expert_id is None:
            raise Error(f"{self.name}: {weight_name} came as shard {shard_id!r} of expert {expert_id}; expected w1, w2 or w3 of one expert",
                        kind="unsupported", module=self.name)
        if self.layer._map_global_expert_id_to_local_expert_id(expert_id) == -1:
            return False if return_success else None
        suffix = weight_name.rsplit(".", 1)[-1].split("_", 1)[1]  # w13_weight_packed
        if self.fused and suffix == "weight" and loaded_weight.dtype == torch.uint8:
            suffix = "weight_packed"
        name = f"{self.projections[shard_id]}.{suffix}"
        if expert_id in self.packed:
            if name in self.awaited:
                raise Error(f"{self.name}: its experts were packed and cannot be loaded again", kind="state", module=self.name)
            return True if return_success else None
        tensors = self.pending.setdefault(expert_id, {})
        if self.stored and suffix == "input_scale" and loaded_weight.numel() == 1:
            if float(loaded_weight) == 0.0:
                return True if return_success else None
            if name not in self.largest or float(loaded_weight) > float(self.largest[name]):
                self.largest[name] = loaded_weight
        tensors[name] = loaded_weight
        if self.awaited <= tensors.keys():
            self.pack(expert_id)
        return True if return_success else None

    def pack(self, expert: int) -> None:
        self.builder.set_expert(expert, self.pending.pop(expert))
        self.packed.add(expert)

    def pack_rest(self) -> None:
        """Whatever is missing is said by the builder."""
        for expert in list(self.pending):
            for name, scale in self.largest.items():
                self.pending[expert].setdefault(name, scale)
            self.pack(expert)


def routes_plainly(layer: torch.nn.Module) -> bool:
    """Softmax, the k best, perhaps scaled to a sum of 1, and nothing else: what moebius::moe_logits does in one call."""
    return bool(layer.scoring_func == "softmax" and not layer.use_grouped_topk and layer.custom_routing_function is None
                and layer.e_score_correction_bias is None and not layer.apply_router_weight_on_input and layer.routed_scaling_factor == 1.0)


class MoebiusMoeMethod(FusedMoEMethodBase):
    """Plain softmax routing is done with the experts, as vLLM's own int4 experts do; sigmoid, which vLLM's CPU router does not know, here;
    the rest stays vLLM's."""

    def __init__(self, layer: torch.nn.Module, matrices: List[Matrix], settings: Settings) -> None:
        super().__init__(layer.moe_config)
        self.matrices, self.settings, self.fused = matrices, settings, type(layer).__name__ in FUSED
        self.suffixes = sorted({s for m in matrices for s in m.suffixes if s != "bias"})
        self.plain = settings.routing == "moebius" and not self.fused and routes_plainly(layer)
        self.routes = self.plain or not layer.use_grouped_topk and layer.custom_routing_function is None and layer.scoring_func == "sigmoid"

    @classmethod
    def of_schemes(cls, layer: torch.nn.Module, schemes: List[Scheme], settings: Settings) -> "MoebiusMoeMethod":
        made = cls(layer, [Matrix("", s, frozenset(awaited(s))) for s in schemes], settings)
        made.suffixes = suffixes(schemes)
        return made

    @property
    def is_monolithic(self) -> bool:
        return self.routes

    @property
    def topk_indices_dtype(self) -> Optional[torch.dtype]:
        return torch.int32

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        return None

    def names(self) -> List[str]:
        known = self.suffixes + (["weight"] if self.fused else [])
        found = [f"{w}_{s}" for w in ("w13", "w2") for s in dict.fromkeys(known)]
        return found + (["w13_bias", "w2_bias"] if self.moe.has_bias else [])

    def create_weights(self, layer: torch.nn.Module, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
                       params_dtype: torch.dtype, **extra_weight_attrs: Any) -> None:
        layer.moebius_experts = Experts(layer, self.matrices, self.settings, hidden_size, params_dtype)
        tally.begin()
        register_empty(layer, self.names(), layer.moebius_experts.load)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        experts: Experts = layer.moebius_experts
        experts.pack_rest()
        made = experts.builder.finish()
        take_over(layer, made, self.names())
        del layer.moebius_experts
        families = sorted({"dense" if m.scheme is None else m.scheme.family for m in self.matrices})
        tally.end(f"experts {'/'.join(families)}", made)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
              shared_experts: Any = None, shared_experts_input: Optional[torch.Tensor] = None) -> torch.Tensor:
        if layer.apply_router_weight_on_input:
            x = x * topk_weights.to(x.dtype)
            topk_weights = torch.ones_like(topk_weights)
        y: torch.Tensor = torch.ops.moebius.moe(x, topk_ids, topk_weights, layer.moebius_layer)
        return y

    def apply_monolithic(self, layer: torch.nn.Module, x: torch.Tensor, router_logits: torch.Tensor,
                         input_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        if self.plain:
            y: torch.Tensor = torch.ops.moebius.moe_logits(x, router_logits, layer.moebius_layer)
            return y
        scores = router_logits.float().sigmoid()
        bias = layer.e_score_correction_bias
        ids = torch.topk(scores if bias is None else scores + bias.float(), layer.top_k, dim=-1)[1]
        weights = scores.gather(1, ids)
        if layer.renormalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return self.apply(layer, x, weights * layer.routed_scaling_factor, ids.to(torch.int32))
