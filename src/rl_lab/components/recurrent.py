"""GRU (Cho et al., 2014) and LSTM (Hochreiter and Schmidhuber, 1997) that forget at episode starts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_lab.components.memory import Memory


def orthogonal_cell(cell: nn.RNNCellBase) -> None:
    """Give a recurrent cell orthogonal weights and zero biases."""
    for name, parameter in cell.named_parameters():
        nn.init.zeros_(parameter) if name.startswith("bias") else nn.init.orthogonal_(parameter)


class GRU(Memory):
    """Carry: the hidden state [N, hidden_dim].

    Args:
        input_dim: Numbers read per step.
        hidden_dim: Size of the state and of the output.
    """

    def __init__(self, input_dim: int, hidden_dim: int = 64) -> None:
        super().__init__()
        self.cell = nn.GRUCell(input_dim, hidden_dim)
        orthogonal_cell(self.cell)
        self.input_dim, self.output_dim = input_dim, hidden_dim

    def initial_carry(self, num_envs: int) -> Tensor:
        """Return zeros."""
        return self.cell.weight_hh.new_zeros(num_envs, self.output_dim)

    def sequence(self, inputs: Tensor, carry: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Step through time; each step's reset depends on the data, so no fused kernel fits."""
        features = []
        for x, keep in zip(inputs, (~is_first).unsqueeze(-1).to(inputs.dtype), strict=True):
            carry = self.cell(x, carry * keep)
            features.append(carry)
        return torch.stack(features), carry


class LSTM(Memory):
    """Carry: the hidden and the cell state, each [N, hidden_dim].

    Args:
        input_dim: Numbers read per step.
        hidden_dim: Size of either state and of the output.
    """

    def __init__(self, input_dim: int, hidden_dim: int = 64) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(input_dim, hidden_dim)
        orthogonal_cell(self.cell)
        self.input_dim, self.output_dim = input_dim, hidden_dim

    def initial_carry(self, num_envs: int) -> tuple[Tensor, Tensor]:
        """Return zeros."""
        zeros = self.cell.weight_hh.new_zeros(num_envs, self.output_dim)
        return zeros, zeros.clone()

    def sequence(
        self, inputs: Tensor, carry: tuple[Tensor, Tensor], is_first: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Step through time; each step's reset depends on the data, so no fused kernel fits."""
        features = []
        for x, keep in zip(inputs, (~is_first).unsqueeze(-1).to(inputs.dtype), strict=True):
            carry = self.cell(x, (carry[0] * keep, carry[1] * keep))
            features.append(carry[0])
        return torch.stack(features), carry
