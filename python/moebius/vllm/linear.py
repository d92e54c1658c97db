# SPDX-License-Identifier: Apache-2.0
"""vLLM's linear layers on moebius::linear."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from .. import Linear, Part, Scheme
from .._library import Error
from .loading import DTYPES, awaited, register_empty, suffixes, take_over, tally
from .stored import Matrix
from .settings import Settings
from .threads import threads

QKV: Dict[Any, int] = {"q": 0, "k": 1, "v": 2}


class Collector:
    """The tensors of one layer as they come, part by part; packed when the last one is there."""

    def __init__(self, layer: torch.nn.Module, matrices: List[Matrix], settings: Settings, inputs: int, sizes: List[int],
                 dtype: torch.dtype) -> None:
        self.layer, self.matrices, self.settings, self.inputs, self.sizes = layer, matrices, settings, inputs, sizes
        self.dtype = dtype
        self.tensors: Dict[Tuple[int, ...], Dict[str, torch.Tensor]] = {}
        self.made: Optional[Linear] = None
        self.awaited = {s for m in matrices for s in m.awaited}
        self.tp, self.tp_rank = getattr(layer, "tp_size", 1), getattr(layer, "tp_rank", 0)
        self.split = "none" if isinstance(layer, ReplicatedLinear) or self.tp == 1 else \
            "inputs" if isinstance(layer, RowParallelLinear) else "outputs"

    def key(self, shard: Any) -> Tuple[int, ...]:
        """Which of the parts a tensor holds."""
        if shard is None:
            return tuple(range(len(self.sizes)))
        shards: Any = shard if isinstance(shard, (tuple, list)) else (shard,)
        return tuple(QKV[s] if s in QKV else int(s) for s in shards)

    def loader(self, suffix: str) -> Any:
        def load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, loaded_shard_id: Any = None) -> None:
            if self.made is not None:
                if suffix in self.awaited:
                    raise Error(f"{self.name}: its weights were packed and cannot be loaded again", kind="state")
                return
            self.tensors.setdefault(self.key(loaded_shard_id), {})[suffix] = loaded_weight
            if self.complete() and not self.waits_for_bias():
                self.build()

        return load

    @property
    def name(self) -> str:
        return getattr(self.layer, "prefix", None) or type(self.layer).__name__

    def waits_for_bias(self) -> bool:
        return getattr(self.layer, "bias", None) is not None

    def complete(self) -> bool:
        parts = sorted(p for key in self.tensors for p in key)
        return parts == list(range(len(self.sizes))) and all(self.of(key).awaited <= t.keys() for key, t in self.tensors.items())

    def of(self, key: Tuple[int, ...]) -> Matrix:
        """How the parts that a tensor holds are stored."""
        return self.matrices[key[0] if len(self.matrices) > 1 else 0]

    def folds_bias(self) -> bool:
        """The bias is part of the layer's one rounding where vLLM would add it to this rank's whole outputs."""
        bias = getattr(self.layer, "bias", None)
        return bias is not None and self.tp == 1 and not getattr(self.layer, "skip_bias_add", False)

    def rank_of(self, key: Tuple[int, ...]) -> Tuple[int, int]:
        """k and v heads may be on several ranks."""
        replicas = getattr(self.layer, "num_kv_head_replicas", 1) if isinstance(self.layer, QKVParallelLinear) else 1
        return (self.tp // replicas, self.tp_rank // replicas) if key[0] > 0 else (self.tp, self.tp_rank)

    def build(self) -> None:
        if not self.complete():
            raise Error(f"{self.name}: tensors are missing; {sorted(self.awaited)} are needed for each of {len(self.sizes)} parts, and "
                        f"{ {k: sorted(t) for k, t in self.tensors.items()} } came", kind="file", module=self.name)
        if self.tp > 1 and any(len(key) > 1 for key in self.tensors):
            raise Error(f"{self.name}: several matrices are stored as one, which cannot be cut for tensor parallelism here",
                        kind="unsupported", module=self.name)
        parts, at = [], 0
        for key in sorted(self.tensors):
            outputs = sum(self.sizes[p] for p in key)
            tensors = dict(self.tensors[key])
            if self.folds_bias():
                tensors["bias"] = self.layer.bias.data[at:at + outputs]
            at += outputs
            tp, rank = self.rank_of(key)
            parts.append(Part(f"{self.name}.{'.'.join(map(str, key))}", self.of(key).scheme, outputs, self.inputs, tensors, self.split, tp, rank))
        self.made = Linear.build(parts, threads=threads(self.settings.threads), dtype=DTYPES[self.dtype], int8=self.settings.int8,
                                 kernel=self.settings.kernel)
        self.tensors.clear()


class MoebiusLinearMethod(LinearMethodBase):
    """Any scheme that the library runs, one for all parts or one for each; tensors go to it as they are stored."""

    def __init__(self, matrices: List[Matrix], settings: Settings) -> None:
        self.matrices, self.settings = matrices, settings
        self.suffixes = sorted({s for m in matrices for s in m.suffixes if s != "bias"})

    @classmethod
    def of_scheme(cls, scheme: Scheme, settings: Settings) -> "MoebiusLinearMethod":
        made = cls([Matrix("", scheme, frozenset(awaited(scheme)))], settings)
        made.suffixes = suffixes([scheme])
        return made

    def create_weights(self, layer: torch.nn.Module, input_size_per_partition: int, output_partition_sizes: List[int], input_size: int,
                       output_size: int, params_dtype: torch.dtype, **extra_weight_attrs: Any) -> None:
        if isinstance(layer, QKVParallelLinear):
            heads = (layer.total_num_heads * layer.head_size, layer.total_num_kv_heads * layer.head_size,
                     layer.total_num_kv_heads * layer.v_head_size)
            sizes = list(heads)
        elif isinstance(layer, ParallelLMHead):
            sizes = [layer.org_vocab_size]
        else:
            sizes = list(getattr(layer, "output_sizes", None) or [output_size])
        collector = Collector(layer, self.matrices, self.settings, input_size, sizes, params_dtype)
        layer.moebius_collector = collector
        tally.begin()
        for suffix in self.suffixes:
            register_empty(layer, [suffix], collector.loader(suffix))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        collector: Collector = layer.moebius_collector
        if collector.made is None:
            collector.build()
        made = collector.made
        assert made is not None
        layer.moebius_outputs, layer.moebius_folded = made.outputs, collector.folds_bias()
        take_over(layer, made, self.suffixes)
        del layer.moebius_collector
        families = sorted({"dense" if m.scheme is None else m.scheme.family for m in self.matrices})
        tally.end(f"linears {'/'.join(families)}", made)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
        y: torch.Tensor = torch.ops.moebius.linear(x, layer.moebius_layer, layer.moebius_outputs)
        return y if bias is None or layer.moebius_folded else y + bias
