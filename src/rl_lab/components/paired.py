"""A plain actor and critic on a CPU without autograd: the chain rule written out, in NumPy.

Small networks spend most of their time in the bookkeeping of torch. When actor and critic are MLPs of the same shape,
both are one batched matrix product per layer, and their gradient is written straight into the flat one. Arrays and
tensors share their memory. `tests/components/test_paired.py` holds all of it against autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.components.flat import Evaluation, FlatParameters, paired_order
from rl_lab.components.mlp import MLP
from rl_lab.components.paired_distributions import ArrayDistribution, array_distribution
from rl_lab.core import Carry, tree_map
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.ops.distributions import Distribution

Array = npt.NDArray[np.float32]


class Activation(NamedTuple):
    """An activation, and its derivative as a function of its output."""

    forward: Callable[[Array], Array]
    slope: Callable[[Array], Array]


ZERO = np.float32(0.0)  # a number of Python takes longer
ACTIVATIONS = {
    nn.Tanh: Activation(np.tanh, lambda y: 1.0 - y * y),
    nn.ReLU: Activation(lambda x: np.maximum(x, ZERO), lambda y: (y > ZERO).astype(y.dtype)),
    nn.ELU: Activation(
        lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
        lambda y: np.minimum(y, np.float32(0.0)) + np.float32(1.0),
    ),
}


class Layer(NamedTuple):
    """One layer and where its gradient goes: of both networks [2, ...] in the trunks, of one in the heads."""

    weight: Array  # [..., out, in]
    bias: Array  # [..., 1, out]
    weight_grad: Array
    bias_grad: Array  # [..., out]


class PairedActorCritic(FlatParameters):
    """An `ActorCritic` of two plain MLPs; make it only where `fits` says so. Gradients are the means of all ranks'."""

    def __init__(self, policy: ActorCritic, ranks: Ranks = ALONE) -> None:
        super().__init__(paired_order(policy))
        assert isinstance(policy.actor, MLP)
        assert policy.head.layer is not None
        self._policy, self._ranks = policy, ranks
        self._activation = ACTIVATIONS[activation_of(policy.actor)]  # type: ignore[index]
        self.tensor.grad = torch.zeros_like(self.tensor)
        self._values, self._grads, self._taken = self.tensor.data.numpy(), self.tensor.grad.numpy(), 0
        self._layers = [self._take_layer(linear, 2) for linear in linears(policy.actor)]
        self._heads = self._take_layer(policy.head.layer), self._take_layer(policy.value_head)
        self._log_std_grad = self._grads[self._taken :]  # what is left, if anything
        self._tape: list[Array] = []
        self._pi: ArrayDistribution
        self._actions: npt.NDArray[Any]

    def _take_layer(self, linear: nn.Linear, *copies: int) -> Layer:
        """Return the next part of the flat tensors as a layer, of one network or of both."""
        weight, weight_grad = self._take(*copies, *linear.weight.shape)
        bias, bias_grad = self._take(*copies, *linear.bias.shape)
        return Layer(weight, bias[..., None, :], weight_grad, bias_grad)

    def _take(self, *shape: int) -> tuple[Array, Array]:
        part = slice(self._taken, self._taken + int(np.prod(shape)))
        self._taken = part.stop
        return self._values[part].reshape(shape), self._grads[part].reshape(shape)

    @staticmethod
    def fits(policy: ActorCritic) -> bool:
        """Return whether the networks are two plain MLPs of one shape that read the same numbers, on a CPU."""
        actor, critic = policy.actor, policy.critic
        if not isinstance(actor, MLP) or not isinstance(critic, MLP) or not policy.is_feedforward:
            return False
        if (
            policy.head.layer is None
            or not policy.head.is_differentiable
            or policy.value_head.weight.device.type != "cpu"
        ):
            return False
        shapes = [[p.shape for p in net.parameters()] for net in (actor, critic)]
        kind = activation_of(actor)
        plain = [type(module) in (nn.Linear, kind) for net in (actor, critic) for module in net]
        return kind is not None and kind is activation_of(critic) and shapes[0] == shapes[1] and all(plain)

    def policy(self, inputs: Inputs, carry: Carry, is_first: Tensor) -> tuple[Distribution, Carry]:
        """Return the policy and the next carry: all that acting needs."""
        x, mask = inputs
        if type(x) is not Tensor:  # where a policy is exported
            return self._policy.policy(inputs, carry, is_first)
        y = x.numpy()
        for layer in self._layers:
            y = self._activation.forward(y @ layer.weight[0].T + layer.bias[0])
        head = self._heads[0]
        return self._policy.head.distribution(torch.from_numpy(y @ head.weight.T + head.bias), mask), carry

    def native(self, rollout: Any) -> Any:
        """Return a tree of tensors in the form that `evaluate` takes: arrays over the same memory."""
        return tree_map(lambda leaf: leaf.numpy(), rollout)

    def evaluate(self, inputs: Any, carry: Carry, is_first: Any, actions: npt.NDArray[Any]) -> Evaluation:
        """Evaluate actions and remember what `set_gradient` needs."""
        x, mask = inputs
        y = np.broadcast_to(x, (2, *x.shape))
        self._tape = [y]
        for layer in self._layers:
            y = np.matmul(y, layer.weight.swapaxes(1, 2))
            y += layer.bias
            self._tape.append(y := self._activation.forward(y))
        outputs, values = (y[i] @ head.weight.T + head.bias for i, head in enumerate(self._heads))
        self._pi, self._actions = array_distribution(self._policy.head, outputs, mask), actions
        return Evaluation(self._pi.log_prob(actions), self._pi.entropy(), values[:, 0])

    def set_gradient(
        self, log_prob_grad: Array, entropy_grad: float, value_grad: Array, max_norm: float | None, *losses: Tensor
    ) -> np.floating[Any]:
        """Set the gradient, given those by what `evaluate` returned; return its norm before clipping."""
        assert not losses, "other losses need autograd"
        by_output, by_log_std = self._pi.gradients(self._actions, log_prob_grad, entropy_grad / len(log_prob_grad))
        if by_log_std is not None:
            self._log_std_grad[:] = by_log_std
        self._backward(by_output, value_grad[:, None])
        if self._ranks.size > 1:
            self._ranks.mean_(self.tensor.grad)  # type: ignore[arg-type]  # whose memory the arrays share
        norm = np.sqrt(self._grads @ self._grads)
        if max_norm is not None and norm > max_norm:
            self._grads *= max_norm / norm
        return norm

    def _backward(self, *output_grads: Array) -> None:
        """Write the chain rule from the two outputs down to the first layer into the flat gradient."""
        top, ones = self._tape[-1], np.ones(len(output_grads[0]), np.float32)  # ones @ x sums rows faster than sum
        g = np.empty_like(top)
        for index, (grad, head) in enumerate(zip(output_grads, self._heads, strict=True)):
            np.matmul(grad.T, top[index], out=head.weight_grad)
            np.matmul(ones, grad, out=head.bias_grad)
            np.matmul(grad, head.weight, out=g[index])
        for index in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[index]
            g *= self._activation.slope(self._tape[index + 1])
            np.matmul(g.swapaxes(1, 2), self._tape[index], out=layer.weight_grad)
            np.matmul(ones, g, out=layer.bias_grad)
            if index:
                g = np.matmul(g, layer.weight)


def linears(network: MLP) -> list[nn.Linear]:
    """Return the linear layers of an MLP in order."""
    return [module for module in network if isinstance(module, nn.Linear)]


def activation_of(network: MLP) -> type[nn.Module] | None:
    """Return the class of the network's activation, if its derivative is written out here."""
    return next((kind for kind in ACTIVATIONS if any(type(module) is kind for module in network)), None)
