"""The value of every discrete action: plain, or as a distribution of returns; dueling, noisy; and how to act on it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.action_values import ValueRange
from rl_lab.components.array_mlp import FEW_ROWS, fast_forward
from rl_lab.components.mlp import orthogonal_linear
from rl_lab.components.noisy import noisy_linear, with_noise
from rl_lab.components.precision import in_float32
from rl_lab.core import ConfigError, unknown_name
from rl_lab.ops.distributional import cross_entropy, project, quantile_huber

Distribution = Literal["none", "categorical", "quantile"]
Loss = Literal["huber", "mse"]
LOSSES = {"huber": F.smooth_l1_loss, "mse": F.mse_loss}
Mask = Tensor | None  # True where an action is allowed
FORBIDDEN = -torch.inf


class Returns(nn.Module):
    """What a critic's outputs say of the return; here they are its mean itself, `num_outputs` is 0: no dimension.

    A belief is what outputs become before they are chosen from or averaged over actions.

    Args:
        loss: huber (Mnih et al., 2015) or mse.
    """

    num_outputs = 0

    def __init__(self, loss: Loss = "huber") -> None:
        super().__init__()
        if loss not in LOSSES:
            raise ConfigError(unknown_name("algorithm.loss", loss, LOSSES))
        self._loss = LOSSES[loss]

    def beliefs(self, outputs: Tensor) -> Tensor:
        """Return the beliefs [..., n] or [..., n, k] of outputs of the same shape."""
        return outputs

    def values(self, beliefs: Tensor) -> Tensor:
        """Return the means [..., n] of beliefs."""
        return beliefs

    def targets(self, beliefs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return what beliefs [R] or [R, k] of the next step are worth a step earlier."""
        return rewards + discounts * beliefs

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss [R] of each row of outputs [R] or [R, k]."""
        return self._loss(outputs, targets, reduction="none")


class CategoricalReturns(Returns):
    """Probabilities of fixed returns: C51 (Bellemare et al., 2017); outputs are logits, beliefs probabilities.

    Args:
        value_range: The returns.
    """

    support: Tensor

    def __init__(self, value_range: ValueRange) -> None:
        super().__init__()
        self.num_outputs = value_range.num_atoms
        self.register_buffer("support", value_range.atoms())

    def beliefs(self, outputs: Tensor) -> Tensor:
        """Return probabilities."""
        return outputs.softmax(-1)

    def values(self, beliefs: Tensor) -> Tensor:
        """Return the means."""
        return (beliefs * self.support).sum(-1)

    def targets(self, beliefs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return probabilities on the atoms of the moved and squeezed distribution."""
        return project(beliefs, rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * self.support, self.support)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return cross_entropy(outputs, targets)


class QuantileReturns(Returns):
    """Returns at evenly spaced quantiles: QR-DQN (Dabney et al., 2018).

    Args:
        num_quantiles: How many.
    """

    def __init__(self, num_quantiles: int) -> None:
        super().__init__()
        self.num_outputs = num_quantiles

    def values(self, beliefs: Tensor) -> Tensor:
        """Return the means."""
        return beliefs.mean(-1)

    def targets(self, beliefs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return the moved and squeezed quantiles."""
        return rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * beliefs

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the quantile regression loss."""
        return quantile_huber(outputs, targets)


class DiscreteValues(nn.Module):
    """A critic of `num_choices` actions on trunks that end in features.

    Args:
        trunk: `components.critic`.
        num_choices: Actions.
        returns: What outputs say of the return.
        is_dueling: Whether to put out a value and advantages (Wang et al., 2016), whose mean is taken away.
        value_trunk: `components.value`, a stream of its own for the value; None: it is read off `trunk` as well.
        is_noisy: Whether all linear layers have learnt noise.
    """

    def __init__(
        self,
        trunk: nn.Module,
        num_choices: int,
        returns: Returns,
        *,
        is_dueling: bool = False,
        value_trunk: nn.Module | None = None,
        is_noisy: bool = False,
    ) -> None:
        super().__init__()
        if value_trunk is not None and not is_dueling:
            raise ConfigError("components.value: only algorithm.dueling has a stream for the value")
        self.returns, self.num_choices, self.is_dueling, self.is_noisy = returns, num_choices, is_dueling, is_noisy
        per_choice = max(1, returns.num_outputs)
        width = (num_choices + (is_dueling and value_trunk is None)) * per_choice
        head = orthogonal_linear(trunk.output_dim, width, 1.0)  # type: ignore[arg-type]
        value_head = None if value_trunk is None else orthogonal_linear(value_trunk.output_dim, per_choice, 1.0)  # type: ignore[arg-type]
        if is_noisy:
            trunk, value_trunk = with_noise(trunk), None if value_trunk is None else with_noise(value_trunk)
        self.trunk, self.value_trunk = trunk, value_trunk
        self.head: nn.Module = noisy_linear(head) if is_noisy else head
        self.value_head: nn.Module | None = (
            value_head if value_head is None or not is_noisy else noisy_linear(value_head)
        )
        is_plain = value_trunk is None and not is_noisy
        self._output = fast_forward(trunk, head) if is_plain else self._all_outputs
        self._is_direct = is_plain and not is_dueling and returns.num_outputs == 0  # outputs are the values

    def forward(self, features: Tensor) -> Tensor:
        """Return outputs [B, n], or [B, n, k] of distributions of returns, for features [B, F]."""
        return self._joined(self._all_outputs(features))

    def _all_outputs(self, features: Tensor) -> Tensor:
        """Return what the heads put out, flat; of dueling ones the value comes last."""
        outputs = in_float32(self.head, self.trunk(features))
        if self.value_trunk is None or self.value_head is None:
            return outputs
        return torch.cat([outputs, in_float32(self.value_head, self.value_trunk(features))], -1)

    def _joined(self, flat: Tensor) -> Tensor:
        """Return `V + A - mean A` where there are both, and distributions in a dimension of their own."""
        outputs = flat.unflatten(-1, (-1, self.returns.num_outputs)) if self.returns.num_outputs else flat
        if not self.is_dueling:
            return outputs
        choices = 1 if self.returns.num_outputs == 0 else 2  # the dimension of actions, from behind
        advantages, value = outputs.split((self.num_choices, 1), -choices)
        return value + advantages - advantages.mean(-choices, keepdim=True)

    def values(self, outputs: Tensor) -> Tensor:
        """Return the value [..., n] of every action."""
        return self.returns.values(self.returns.beliefs(outputs))

    def behave(self, features: Tensor, mask: Mask, epsilon: float, *, explore: bool) -> Tensor:
        """Return the best allowed actions [B], with chance `epsilon` random ones; noisy layers are so to explore."""
        is_few = features.is_cpu and features.shape[0] <= FEW_ROWS
        if is_few and mask is None and type(features) is Tensor:  # another type where a policy is exported
            return self._behave_few(features, epsilon, explore)
        greedy = allowed(self._values_to_act(features, explore), mask).argmax(-1)
        if epsilon == 0.0:
            return greedy
        draws = torch.rand(features.shape[0], device=features.device)
        return torch.where(draws < epsilon, random_choices(draws / epsilon, self.num_choices, mask), greedy)

    def _behave_few(self, features: Tensor, epsilon: float, explore: bool) -> Tensor:
        """Do the same with as few calls of torch as possible: for one environment those are most of the time."""
        draws = torch.rand(features.shape[0]).tolist() if epsilon > 0.0 else [1.0]
        if max(draws) < epsilon:  # nobody is greedy
            best = draws
        else:
            values = self._output(features) if self._is_direct else self._values_to_act(features, explore)
            best = values.detach().numpy().argmax(-1)
            if epsilon == 0.0:
                return torch.from_numpy(best)
        last, scale = self.num_choices - 1, self.num_choices / epsilon
        pairs = zip(draws, best, strict=True)
        return torch.from_numpy(np.array([min(last, int(u * scale)) if u < epsilon else a for u, a in pairs]))

    def _values_to_act(self, features: Tensor, explore: bool) -> Tensor:
        if not self.is_noisy:
            return self.values(self._joined(self._output(features)))
        was_training = self.training
        self.train(explore)
        values = self.values(self(features))
        self.train(was_training)
        return values


def allowed(values: Tensor, mask: Mask) -> Tensor:
    """Return values [..., n] that are lowest where an action is not allowed."""
    return values if mask is None else values.masked_fill(~mask, FORBIDDEN)


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return [R] or [R, k] of outputs [R, n] or [R, n, k] for the chosen `actions` [R]."""
    is_chosen = torch.arange(outputs.shape[1], device=outputs.device) == actions.unsqueeze(-1)  # [R, n]
    mask = is_chosen if outputs.ndim == is_chosen.ndim else is_chosen.unsqueeze(-1)
    return torch.where(mask, outputs, 0.0).sum(1)  # a gather's gradient waits for the host where it is deterministic


def random_choices(draws: Tensor, num_choices: int, mask: Mask) -> Tensor:
    """Return for draws [B] from [0, 1) one of the allowed choices each, all as likely."""
    if mask is None:
        return (draws * num_choices).long().clamp_(max=num_choices - 1)
    count = mask.cumsum(-1)  # [B, n]: how many are allowed up to here
    rank = (draws * count[:, -1]).long().clamp_(max=count[:, -1] - 1)
    return (count <= rank.unsqueeze(-1)).sum(-1)


def make_returns(kind: Distribution, value_range: ValueRange | None, num_quantiles: int, loss: Loss) -> Returns:
    """Return what outputs say of the return, as the options of an algorithm have it."""
    if (kind == "categorical") != (value_range is not None):
        raise ConfigError("algorithm.value_range: goes with algorithm.distribution=categorical, and only with it")
    if kind == "categorical" and value_range is not None:
        return CategoricalReturns(value_range)
    return QuantileReturns(num_quantiles) if kind == "quantile" else Returns(loss)
