"""What a model without a decoder predicts, open loop: its latent states against those of what was then seen."""

from __future__ import annotations

import torch

from rl_lab.components.latent_model import LatentModel
from rl_lab.components.prediction import NUM_SHOWN, Forecast
from rl_lab.core import Batch, tree_map

KEYS = ("observations", "actions", "rewards", "is_first", "is_terminal")


@torch.no_grad()
def latent_forecast(model: LatentModel, batch: Batch, *, context: int, horizon: int) -> Forecast:
    """See the first row, then imagine up to `horizon` more with the recorded actions.

    A latent state remembers nothing, so that more rows than one would not be known from: `context` is not read.
    """
    rows = tree_map(lambda leaf: leaf[:, : 1 + horizon].transpose(0, 1), {key: batch[key] for key in KEYS})
    seen, actions = model.encode(rows["observations"]), model.action_code.read(rows["actions"])[1:]
    states = model.imagine(seen.at(0), actions)
    before, after = states.at(slice(0, -1)), states.at(slice(1, None))
    ends = None
    if model.cont_head is not None:
        ends = model.cont(after), (~rows["is_terminal"][1:]).float()
    return Forecast(
        num_seen=1,
        is_known=(~rows["is_first"][1:]).cumprod(0).bool(),
        errors={"latent": (states.z - seen.z)[1:].square().mean(-1)},
        reward_errors=(model.reward(before, actions) - rows["rewards"][1:]).square(),
        goes_on=ends,
        shown={"latent": (states.z[:, :NUM_SHOWN], seen.z[:, :NUM_SHOWN])},
    )
