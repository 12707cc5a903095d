"""LaProp (Ziyin et al., 2020) behind adaptive gradient clipping (Brock et al., 2021): the optimiser of DreamerV3, 2024.

A gradient is clipped against the size of its own tensor, then divided by its root mean square, and only then smoothed
(Adam smooths first). Everything it knows is on the device, so that a step can be part of a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor
from torch.optim.optimizer import ParamsT

from rl_lab.core.ranges import Natural, NonNegative, Positive
from rl_lab.core.seeds import ONE_AGENT, Seeds

Decay = Annotated[float, Interval(ge=0, lt=1)]
Tensors = list[Tensor] | tuple[Tensor, ...]


class LaProp(torch.optim.Optimizer):
    """AGC, root mean square scaling and momentum, both unbiased, and a learning rate that rises linearly at first.

    A parameter without a gradient is taken for one whose gradient is 0, so that all have taken equally many steps.

    Args:
        params: What it changes.
        lr: Learning rate after the warm-up.
        betas: What momentum and mean square keep of themselves per step.
        eps: Added to the root mean square.
        agc: Longest gradient, as a share of its tensor's length; 0 leaves it free.
        pmin: Shortest length that a tensor is taken to have.
        warmup: Steps until the learning rate is reached; the first step has none of it.

    The group's `num_seeds` says how many agents lie side by side in a tensor's first dimension; each is clipped alone.
    Its `joined` are indices of parameters that are one tensor in parts: these are clipped as that tensor.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: NonNegative = 4e-5,
        betas: tuple[Decay, Decay] = (0.9, 0.999),
        eps: NonNegative = 1e-20,
        agc: NonNegative = 0.3,
        pmin: Positive = 1e-3,
        warmup: Natural = 1000,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "agc": agc, "pmin": pmin, "warmup": warmup}
        super().__init__(params, options | {"num_seeds": 1, "joined": []})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take in more parameters, with their state: a checkpoint or a capture before the first step must find it."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter] = {
                "square": torch.zeros_like(parameter),
                "mean": torch.zeros_like(parameter),
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; torch leaves steps where they are, here they go to the parameters."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)
        for group in self.param_groups:
            group.setdefault("num_seeds", 1)  # early checkpoints knew of one agent only
            group.setdefault("joined", [])  # and clipped parts alone: their runs go on so

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step down the gradients; return what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = group["params"]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            laprop_step(parameters, gradients, [self.state[p] for p in parameters], group)
        return loss


def laprop_step(
    parameters: Tensors,
    gradients: Tensors,
    states: Sequence[Mapping[str, Tensor]],
    options: Mapping[str, Any],
) -> None:
    """Do in place what one step of `LaProp` with these options does; call it without gradients."""
    beta1, beta2 = options["betas"]
    squares, means, steps = ([state[key] for state in states] for key in ("square", "mean", "step"))
    torch._foreach_add_(steps, 1.0)
    step = steps[0]  # all of them are equal
    seeds, joined = Seeds(options["num_seeds"]), options["joined"]
    clipped = clip_adaptively(parameters, gradients, options["agc"], options["pmin"], seeds, joined)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, clipped, clipped, 1.0 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_mul_(roots, _weight_so_far(beta2, step).rsqrt())
    torch._foreach_add_(roots, options["eps"])
    torch._foreach_lerp_(means, torch._foreach_div(clipped, roots), 1.0 - beta1)
    rate = options["lr"] / _weight_so_far(beta1, step)
    if options["warmup"]:
        rate = rate * ((step - 1.0) / options["warmup"]).clamp(max=1.0)
    torch._foreach_sub_(parameters, torch._foreach_mul(means, rate))


def clip_adaptively(
    parameters: Tensors,
    gradients: Tensors,
    agc: float,
    pmin: float,
    seeds: Seeds = ONE_AGENT,
    joined: Sequence[Sequence[int]] = (),
) -> Tensors:
    """Return gradients that are at most `agc` as long as their tensors, of which none counts as shorter than `pmin`."""
    if agc == 0.0:
        return gradients
    limits = agc * _of_wholes(seeds.norms(parameters), joined).clamp(min=pmin)
    excess = (_of_wholes(seeds.norms(gradients), joined) / limits).clamp(min=1.0)
    return seeds.scaled(gradients, excess.reciprocal().unbind())


def _of_wholes(norms: Tensor, joined: Sequence[Sequence[int]]) -> Tensor:
    """Give the parts of a tensor, in place, the length of the whole."""
    for parts in joined:
        whole = torch.linalg.vector_norm(torch.stack([norms[index] for index in parts]), dim=0)
        for index in parts:
            norms[index].copy_(whole)
    return norms


def _weight_so_far(beta: float, step: Tensor) -> Tensor:
    """Return `1 - beta^step`, the sum of a moving average's weights, without the cancellation of the first steps."""
    return -torch.expm1(step * math.log(beta)) if beta > 0.0 else torch.ones_like(step)
