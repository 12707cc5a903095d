"""Which weights of a VLA learn: all, those of the action expert, or low-rank changes (LoRA, Hu et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.vla.gemma import GatedMLP, Gemma, Projections
from rl_lab.components.vla.pi0 import Pi0
from rl_lab.core.ranges import Count, Positive

ADDED = ("lora_a", "lora_b")  # parameters that no checkpoint of a base has


@dataclass(frozen=True)
class Tuning:
    """What learns, and how precise the rest is.

    Attributes:
        train: all; expert (the action expert, and the layers that read states and actions); or lora (low-rank changes
            of both experts' matrices, and the layers that read states and actions).
        rank: Of LoRA's changes.
        alpha: Their scale; a change counts `alpha / rank`.
        frozen_dtype: Of the weights that do not learn; with bfloat16 all products are in bfloat16.
    """

    train: Literal["all", "expert", "lora"] = "all"
    rank: Count = 16
    alpha: Positive = 16.0
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"


class LoRALinear(nn.Linear):
    """A linear layer plus a product of two thin matrices, which is 0 at first; the layer itself does not learn."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias, self.scale = base.weight, base.bias, alpha / rank
        device = base.weight.device
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5.0))

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., out_features]."""
        thin = F.linear(input, self.lora_a)
        return F.linear(input, self.weight, self.bias) + self.scale * F.linear(thin, self.lora_b)


def tune(model: Pi0, tuning: Tuning) -> None:
    """Let only what should learn require gradients, and lower the precision of the rest."""
    model.requires_grad_(False)
    if tuning.train == "lora":
        for expert in (model.backbone.language_model, model.expert):
            _add_lora(expert, tuning)
    for parameter in _learning(model, tuning):
        parameter.requires_grad_(True)
    for parameter in unread(model):
        parameter.requires_grad_(False)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(getattr(torch, tuning.frozen_dtype))


def merged(model: Pi0) -> dict[str, Tensor]:
    """Return the weights under the names of a base checkpoint, with LoRA's changes added in."""
    changes = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoRALinear)}
    weights = {name: tensor for name, tensor in model.state_dict().items() if name.rsplit(".", 1)[-1] not in ADDED}
    for name, layer in changes.items():
        change = layer.scale * layer.lora_b.detach() @ layer.lora_a.detach()
        weights[f"{name}.weight"] = (layer.weight.detach().float() + change).to(layer.weight.dtype)
    return weights


def _learning(model: Pi0, tuning: Tuning) -> Iterator[nn.Parameter]:
    if tuning.train == "all":
        yield from model.parameters()
        return
    for name, parameter in model.named_parameters():
        reads_actions = not name.startswith("paligemma_with_expert.")
        is_expert = tuning.train == "expert" and name.startswith("paligemma_with_expert.gemma_expert.")
        if reads_actions or is_expert or name.rsplit(".", 1)[-1] in ADDED:
            yield parameter


def unread(model: Pi0) -> Iterator[nn.Parameter]:
    """Yield what no action depends on: all of the backbone after the keys and values of its last layer."""
    language = model.backbone.language_model
    last = language.each_layer()[-1]
    own = last.self_attn
    for module in (own.q_proj, own.o_proj, last.mlp, last.post_attention_layernorm, language.norm):
        yield from module.parameters()


def _add_lora(expert: Gemma, tuning: Tuning) -> None:
    for module in list(expert.modules()):
        if isinstance(module, Projections | GatedMLP):
            for name, layer in list(module.named_children()):
                assert isinstance(layer, nn.Linear)
                setattr(module, name, LoRALinear(layer, tuning.rank, tuning.alpha))
