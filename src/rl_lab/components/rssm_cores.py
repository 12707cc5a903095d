"""Deterministic parts of a world model's state: what was, what was drawn and what was done become the next state.

Actions of all steps are known beforehand, so that their share of the first layer (`embed`) is computed outside the time
loop.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.layers import BlockLinear, LayerStyle, dense, initialize, norm_layer
from rl_lab.components.mlp import activation_module
from rl_lab.components.precision import may_be_low
from rl_lab.core import ConfigError, unknown_name
from rl_lab.core.seeds import is_batched

CoreKind = Literal["gru", "layer_norm_gru", "block_gru"]
KINDS = ("gru", "layer_norm_gru", "block_gru")
UPDATE_BIAS = -1.0  # of the update gate: a new state keeps most of the old one


class Core(nn.Module):
    """Steps the deterministic state."""

    @abstractmethod
    def embed(self, actions: Tensor) -> Tensor:
        """Return what actions [..., A] contribute."""

    @abstractmethod
    def forward(self, deter: Tensor, stoch: Tensor, embedded: Tensor) -> Tensor:
        """Return the next deterministic state [B, D]."""


class SplitLinear(nn.Module):
    """Linear, normalisation and activation over two inputs, of which one is known for all steps beforehand.

    Args:
        early_dim: Numbers of the input that is known beforehand; it brings the bias.
        late_dim: Numbers of the other one.
        output_dim: Numbers put out.
        style: Of the layer; initial weights are those of one layer over both inputs.
    """

    def __init__(self, early_dim: int, late_dim: int, output_dim: int, style: LayerStyle) -> None:
        super().__init__()
        self.early, self.late = nn.Linear(early_dim, output_dim), nn.Linear(late_dim, output_dim, bias=False)
        for layer in (self.early, self.late):
            initialize(layer.weight, early_dim + late_dim, output_dim, style.init)
        nn.init.zeros_(self.early.bias)
        self.norm, self.activation = norm_layer(style.norm, output_dim), activation_module(style.activation)

    def forward(self, early: Tensor, late: Tensor) -> Tensor:
        """Return the activated sum; `early` is what `self.early` made of its input."""
        return self.activation(self.norm(early + self.late(late)))


def split_weights(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the halves of all weights in a module that are held as two."""
    return [(part.early.weight, part.late.weight) for part in module.modules() if isinstance(part, SplitLinear)]


class DenseCore(Core):
    """Begins with a dense layer on the sample and the action.

    Args:
        deter_dim: Width of the state.
        stoch_dim: Numbers of a sample.
        action_dim: Numbers of an action.
        hidden_dim: Width of the dense layer.
        style: Of the dense layer.
    """

    def __init__(self, deter_dim: int, stoch_dim: int, action_dim: int, hidden_dim: int, style: LayerStyle) -> None:
        super().__init__()
        self.input = SplitLinear(action_dim, stoch_dim, hidden_dim, style)

    def embed(self, actions: Tensor) -> Tensor:
        """Return the action's share of the dense layer."""
        return self.input.early(actions)


class GRUCore(DenseCore):
    """The dense layer, then a GRU: PlaNet and DreamerV1; arguments are those of DenseCore."""

    def __init__(self, deter_dim: int, stoch_dim: int, action_dim: int, hidden_dim: int, style: LayerStyle) -> None:
        super().__init__(deter_dim, stoch_dim, action_dim, hidden_dim, style)
        self.cell = nn.GRUCell(hidden_dim, deter_dim)
        nn.init.xavier_uniform_(self.cell.weight_ih)
        nn.init.orthogonal_(self.cell.weight_hh)
        nn.init.zeros_(self.cell.bias_ih)
        nn.init.zeros_(self.cell.bias_hh)

    def forward(self, deter: Tensor, stoch: Tensor, embedded: Tensor) -> Tensor:
        """Return the next state."""
        x = self.input(embedded, stoch)
        if may_be_low(x.device) or is_batched():
            return self._by_formula(x, deter)
        return self.cell(x, deter)  # which would make the state low, not only the products, and knows one agent only

    def _by_formula(self, x: Tensor, deter: Tensor) -> Tensor:
        """Return `u h + (1 - u) tanh(n + r m)`, where only the products that make `r`, `u`, `n` and `m` are low."""
        cell = self.cell
        reset, update, new = F.linear(x, cell.weight_ih, cell.bias_ih).float().chunk(3, -1)
        old_reset, old_update, old_new = F.linear(deter, cell.weight_hh, cell.bias_hh).float().chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
        return torch.lerp(candidate, deter, torch.sigmoid(update + old_update))


class LayerNormGRUCore(DenseCore):
    """The dense layer, then a GRU with normalised gates: DreamerV2 and V3 (2023); arguments are those of DenseCore."""

    def __init__(self, deter_dim: int, stoch_dim: int, action_dim: int, hidden_dim: int, style: LayerStyle) -> None:
        super().__init__(deter_dim, stoch_dim, action_dim, hidden_dim, style)
        self.gates = dense(hidden_dim + deter_dim, 3 * deter_dim, style.init, bias=False)
        self.norm = norm_layer("layer", 3 * deter_dim)

    def forward(self, deter: Tensor, stoch: Tensor, embedded: Tensor) -> Tensor:
        """Return the next state; the reset gate holds back all of the candidate."""
        x = torch.cat([self.input(embedded, stoch), deter], -1)
        return gated(self.norm(self.gates(x)), deter)


class BlockGRUCore(Core):
    """The core of DreamerV3 (2024): three dense inputs, a block-diagonal layer and a block-diagonal GRU.

    Args:
        deter_dim: Width of the state.
        stoch_dim: Numbers of a sample.
        action_dim: Numbers of an action.
        hidden_dim: Width of the dense inputs.
        num_blocks: Blocks of the state.
        style: Of the layers.
    """

    def __init__(
        self, deter_dim: int, stoch_dim: int, action_dim: int, hidden_dim: int, num_blocks: int, style: LayerStyle
    ) -> None:
        super().__init__()
        self.num_blocks = num_blocks
        inputs = {"deter": deter_dim, "stoch": stoch_dim, "action": action_dim}
        self.inputs = nn.ModuleDict({name: self._dense(dim, hidden_dim, style) for name, dim in inputs.items()})
        self.hidden = BlockLinear(deter_dim + num_blocks * 3 * hidden_dim, deter_dim, num_blocks, style.init)
        self.norm, self.activation = norm_layer(style.norm, deter_dim), activation_module(style.activation)
        self.gates = BlockLinear(deter_dim, 3 * deter_dim, num_blocks, style.init)

    @staticmethod
    def _dense(input_dim: int, hidden_dim: int, style: LayerStyle) -> nn.Sequential:
        layer = dense(input_dim, hidden_dim, style.init)
        return nn.Sequential(layer, norm_layer(style.norm, hidden_dim), activation_module(style.activation))

    def embed(self, actions: Tensor) -> Tensor:
        """Return the action's dense input."""
        return self.inputs["action"](actions)

    def forward(self, deter: Tensor, stoch: Tensor, embedded: Tensor) -> Tensor:
        """Return the next state: every block reads its own slice of the state and all three inputs."""
        dense_inputs = torch.cat([self.inputs["deter"](deter), self.inputs["stoch"](stoch), embedded], -1)
        blocks = deter.unflatten(-1, (self.num_blocks, -1)).transpose(0, 1)  # [G, B, D / G]
        x = torch.cat([blocks, dense_inputs.expand(self.num_blocks, -1, -1)], -1)
        x = self.activation(self.norm(_joined(self.hidden(x))))
        gates = self.gates(x.unflatten(-1, (self.num_blocks, -1)).transpose(0, 1))  # [G, B, 3 D / G]
        parts = [_joined(part) for part in gates.chunk(3, -1)]
        return gated(torch.cat(parts, -1), deter)


def gated(gates: Tensor, deter: Tensor) -> Tensor:
    """Return `u c + (1 - u) h` with `c = tanh(r c')` for gates [B, 3 D]: reset, candidate and update."""
    reset, candidate, update = gates.float().chunk(3, -1)
    candidate = torch.tanh(torch.sigmoid(reset) * candidate)
    return torch.lerp(deter, candidate, torch.sigmoid(update + UPDATE_BIAS))


def _joined(blocks: Tensor) -> Tensor:
    """Return [B, D] of blocks [G, B, D / G]."""
    return blocks.transpose(0, 1).flatten(1)


def make_core(
    kind: str, deter_dim: int, stoch_dim: int, action_dim: int, hidden_dim: int, num_blocks: int, style: LayerStyle
) -> Core:
    """Return the core of this kind."""
    if kind not in KINDS:
        raise ConfigError(unknown_name("core", kind, KINDS))
    if kind == "block_gru":
        return BlockGRUCore(deter_dim, stoch_dim, action_dim, hidden_dim, num_blocks, style)
    plain = GRUCore if kind == "gru" else LayerNormGRUCore
    return plain(deter_dim, stoch_dim, action_dim, hidden_dim, style)
