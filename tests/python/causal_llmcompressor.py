# SPDX-License-Identifier: Apache-2.0
"""Gives the calibration of llmcompressor 0.14.0.1 its causal mask back.

Its sequential pipeline traces the model and writes the config into the traced graph as a call of the config's class with the fields
of `to_dict()`, which do not hold `_attn_implementation`. Transformers (5.17.0 and 5.22.2) makes no mask for an implementation that it
does not know, and eager attention without a mask lets every token see all tokens behind it: what calibration sees is not what the
model computes. Static scales and the Hessians of GPTQ come from such rows. `keep()` puts the implementation into that call.
"""


def keep():
    from llmcompressor.pipelines.sequential.helpers import SequentialTracer
    from transformers import PretrainedConfig
    given = SequentialTracer.create_arg

    def create_arg(self, a):
        if not isinstance(a, PretrainedConfig):
            return given(self, a)
        fields = {k: self.create_arg(v) for k, v in a.to_dict().items()}
        return self.create_node("call_function", a.__class__, (), {**fields, "attn_implementation": "eager"})

    SequentialTracer.create_arg = create_arg
