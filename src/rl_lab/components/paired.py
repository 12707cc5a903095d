"""A plain actor and critic without autograd: both networks as one batched matrix product per layer.

Small networks on a CPU spend most of their time in the bookkeeping of torch. When actor and critic are MLPs of the same
shape, the chain rule is written out here, straight into the flat gradient, and a few rows are acted upon in NumPy.
`tests/components/test_paired.py` holds both against autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.components.flat import Evaluation, FlatParameters, clip_gradient
from rl_lab.components.mlp import MLP
from rl_lab.core import Carry
from rl_lab.ops.distributions import DifferentiableDistribution, Distribution

Array = npt.NDArray[np.float32]


class Activation(NamedTuple):
    """An activation in place, its gradient from the gradient and value of its output, and its NumPy twin."""

    scale: float  # of what `forward_` takes: tanh is fastest as 2 sigmoid(2x) - 1
    forward_: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    numpy: Callable[[Array], Array]


aten = torch.ops.aten
ACTIVATIONS = {
    nn.Tanh: Activation(2.0, lambda x: x.sigmoid_().mul_(2.0).sub_(1.0), aten.tanh_backward, np.tanh),
    nn.ReLU: Activation(
        1.0, lambda x: x.relu_(), lambda g, y: aten.threshold_backward(g, y, 0.0), lambda x: np.maximum(x, 0.0)
    ),
    nn.ELU: Activation(
        1.0,
        F.elu_,
        lambda g, y: aten.elu_backward(g, 1.0, 1.0, 1.0, True, y),
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    ),
}
FEW_ROWS = 64  # up to here NumPy's lower cost per call wins


class Layer(NamedTuple):
    """Weights of both networks and where their gradients go; views of the flat tensors."""

    weight: Tensor  # [2, out, in]
    bias: Tensor  # [2, 1, out]
    weight_grad: Tensor
    bias_grad: Tensor  # [2, out]


class PairedActorCritic(FlatParameters):
    """An `ActorCritic` of two plain MLPs; make it only where `fits` says so."""

    def __init__(self, policy: ActorCritic) -> None:
        assert isinstance(policy.actor, MLP)
        assert isinstance(policy.critic, MLP)
        assert policy.head.layer is not None
        pairs = list(zip(linears(policy.actor), linears(policy.critic), strict=True))
        heads = (policy.head.layer, policy.value_head)
        trunk: list[Any] = [p for a, c in pairs for p in (a.weight, c.weight, a.bias, c.bias)]
        ends: list[Any] = [p for head in heads for p in (head.weight, head.bias)]
        known = {id(p) for p in (*trunk, *ends)}
        self._others = [p for p in policy.parameters() if id(p) not in known]  # log_std
        super().__init__([*trunk, *ends, *self._others])
        self._policy = policy
        self._activation = activation_of(policy.actor)
        self.tensor.grad = torch.zeros_like(self.tensor)
        self._layers = self._view_layers(pairs)
        sizes = [p.numel() for p in (*ends, *self._others)]
        views = self.tensor.grad[-sum(sizes) :].split(sizes)
        self._end_grads = [view.view_as(p) for view, p in zip(views, ends, strict=False)]
        self._other_grads = list(views[len(ends) :])
        self._ends = [(head.weight.data, head.bias.data) for head in heads]
        self._tape: list[Tensor] = []
        layers = [(layer.weight[0], layer.bias[0, 0]) for layer in self._layers]
        on_cpu = self.tensor.device.type == "cpu"
        self._numpy = [(w.numpy().T, b.numpy()) for w, b in (*layers, self._ends[0])] if on_cpu else None

    def _view_layers(self, pairs: list[tuple[nn.Linear, nn.Linear]]) -> list[Layer]:
        layers, start = [], 0
        for linear, _ in pairs:
            rows, columns = linear.weight.shape
            middle, end = start + 2 * rows * columns, start + 2 * rows * (columns + 1)
            data, grad = self.tensor.data, self.tensor.grad
            assert grad is not None
            layers.append(
                Layer(
                    data[start:middle].view(2, rows, columns),
                    data[middle:end].view(2, 1, rows),
                    grad[start:middle].view(2, rows, columns),
                    grad[middle:end].view(2, rows),
                )
            )
            start = end
        return layers

    @staticmethod
    def fits(policy: ActorCritic) -> bool:
        """Return whether the networks are two MLPs of one shape that read the same numbers."""
        actor, critic = policy.actor, policy.critic
        if not isinstance(actor, MLP) or not isinstance(critic, MLP) or policy.encoder is not None:
            return False
        same = [type(m) for m in actor] == [type(m) for m in critic] and len(actor) > 0
        shapes = [[p.shape for p in net.parameters()] for net in (actor, critic)]
        plain = all(isinstance(m, nn.Linear | activation_type(actor)) for m in actor)
        is_single = policy.memory is None and policy.head.layer is not None and policy.head.is_differentiable
        return same and shapes[0] == shapes[1] and plain and is_single

    def policy(self, inputs: Inputs, carry: Carry, is_first: Tensor) -> tuple[Distribution, Carry]:
        """Return the policy and the next carry: all that acting needs."""
        x, mask = inputs
        if self._numpy is None or len(x) > FEW_ROWS:
            return self._policy.policy(inputs, carry, is_first)
        y, activate, (*trunk, (weight, bias)) = x.numpy(), self._activation.numpy, self._numpy
        for trunk_weight, trunk_bias in trunk:
            y = activate(y @ trunk_weight + trunk_bias)
        return self._policy.head.distribution(torch.from_numpy(y @ weight + bias), mask), carry

    @torch.no_grad()
    def evaluate(self, inputs: Inputs, carry: Carry, is_first: Tensor | None, actions: Tensor) -> Evaluation:
        """Evaluate actions and remember what `set_gradient` needs."""
        x, mask = inputs
        y = x.expand(2, *x.shape)
        self._tape = [y]
        scale = self._activation.scale
        for layer in self._layers:
            y = torch.baddbmm(layer.bias, y, layer.weight.transpose(1, 2), beta=scale, alpha=scale)
            self._tape.append(y := self._activation.forward_(y))
        (weight, bias), (value_weight, value_bias) = self._ends
        pi = self._policy.head.distribution(torch.addmm(bias, y[0], weight.t()), mask)
        values = torch.addmm(value_bias, y[1], value_weight.t()).squeeze(-1)
        return Evaluation(pi, actions, pi.log_prob(actions), pi.entropy().mean(), values)

    @torch.no_grad()
    def set_gradient(
        self, now: Evaluation, log_prob_grad: Tensor, entropy_grad: float, value_grad: Tensor, max_norm: float | None
    ) -> Tensor:
        """Set the gradient, given those by log_prob, mean entropy and values; return its norm before clipping."""
        assert isinstance(now.pi, DifferentiableDistribution)
        by_output, *others = now.pi.gradients(now.actions, log_prob_grad, entropy_grad / len(log_prob_grad))
        for view, other in zip(self._other_grads, others, strict=True):
            view.copy_(other)
        self._backward(by_output, value_grad.unsqueeze(-1))
        gradient = self.tensor.grad
        assert gradient is not None
        return clip_gradient(gradient, max_norm)

    def _backward(self, actor_grad: Tensor, value_grad: Tensor) -> None:
        """Write the chain rule from the two outputs down to the first layer into the flat gradient."""
        top = self._tape[-1]
        for index, grad in enumerate((actor_grad, value_grad)):
            torch.mm(grad.t(), top[index], out=self._end_grads[2 * index])
            torch.sum(grad, 0, out=self._end_grads[2 * index + 1])
        (weight, _), (value_weight, _) = self._ends
        g = torch.stack((actor_grad.mm(weight), value_grad.mm(value_weight)))
        for index in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[index]
            g = self._activation.backward(g, self._tape[index + 1])
            torch.bmm(g.transpose(1, 2), self._tape[index], out=layer.weight_grad)
            torch.sum(g, 1, out=layer.bias_grad)
            if index:
                g = torch.bmm(g, layer.weight)


def linears(network: MLP) -> list[nn.Linear]:
    """Return the linear layers of an MLP in order."""
    return [module for module in network if isinstance(module, nn.Linear)]


def activation_type(network: MLP) -> type[nn.Module]:
    """Return the class of the activation that can be written out, or a class that nothing is of."""
    return next((kind for kind in ACTIVATIONS if any(type(m) is kind for m in network)), type(None))


def activation_of(network: MLP) -> Activation:
    """Return the activation of an MLP that `fits`."""
    return ACTIVATIONS[activation_type(network)]
