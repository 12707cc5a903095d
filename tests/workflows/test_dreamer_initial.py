"""How every tensor of PlaNet and of every Dreamer begins, against widths and formulas that are written out here."""

import math
import re

import numpy as np
import pytest

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets

# Regular expression of a weight's name -> numbers that the published layer reads and puts out, and its scale.
# Widths of size 1m: state 512 in 8 blocks, latents 32 x 4, layers 64; Pendulum has 3 observations and 1 action.
OF_2024 = {
    r"world_model\.encoder\.vectors\.0": (3, 64, 1.0),
    r"world_model\.encoder\.vectors\.[36]": (64, 64, 1.0),
    r"world_model\.rssm\.core\.inputs\.deter\.0": (512, 64, 1.0),
    r"world_model\.rssm\.core\.inputs\.stoch\.0": (128, 64, 1.0),
    r"world_model\.rssm\.core\.inputs\.action\.0": (1, 64, 1.0),
    r"world_model\.rssm\.core\.hidden": (512 + 8 * 3 * 64, 512, 1.0),  # the fan of all blocks together
    r"world_model\.rssm\.core\.gates": (512, 3 * 512, 1.0),
    r"world_model\.rssm\.prior\.0\.0": (512, 64, 1.0),
    r"world_model\.rssm\.prior\.0\.3": (64, 64, 1.0),
    r"world_model\.rssm\.(prior\.1|posterior_output)": (64, 128, 1.0),
    r"world_model\.rssm\.posterior_input\.(early|late)": (512 + 64, 64, 1.0),  # one layer that is computed in two
    r"(world_model\.(decoder\.vectors\.0|reward_head\.trunk|cont_head\.trunk)|actor\.trunk|critic\.trunk)\.0": (
        *(512 + 128, 64, 1.0),
    ),
    r"(world_model\.decoder\.vectors\.0|actor\.trunk|critic\.trunk)\.[36]": (64, 64, 1.0),
    r"world_model\.decoder\.vectors\.1": (64, 3, 1.0),
    r"world_model\.cont_head\.out": (64, 1, 1.0),
    r"(world_model\.reward_head|critic)\.out": (64, 255, 0.0),
    r"actor\.(mean|std)": (64, 1, 0.01),
}
# Size S of 2023: state 512, latents 32 x 32, layers 512.
OF_2023 = {
    r"world_model\.encoder\.vectors\.0": (3, 512, 1.0),
    r"world_model\.encoder\.vectors\.3": (512, 512, 1.0),
    r"world_model\.rssm\.core\.input\.(early|late)": (1024 + 1, 512, 1.0),
    r"world_model\.rssm\.core\.gates": (512 + 512, 3 * 512, 1.0),
    r"world_model\.rssm\.prior\.0\.0": (512, 512, 1.0),
    r"world_model\.rssm\.(prior\.1|posterior_output)": (512, 1024, 1.0),
    r"world_model\.rssm\.posterior_input\.(early|late)": (512 + 512, 512, 1.0),
    r"(world_model\.(decoder\.vectors\.0|reward_head\.trunk|cont_head\.trunk)|actor\.trunk|critic\.trunk)\.0": (
        *(512 + 1024, 512, 1.0),
    ),
    r"(world_model\.(decoder\.vectors\.0|reward_head\.trunk|cont_head\.trunk)|actor\.trunk|critic\.trunk)\.3": (
        *(512, 512, 1.0),
    ),
    r"world_model\.decoder\.vectors\.1": (512, 3, 1.0),
    r"world_model\.cont_head\.out": (512, 1, 1.0),
    r"(world_model\.reward_head|critic)\.out": (512, 255, 0.0),
    r"actor\.(mean|std)": (512, 1, 1.0),
}


def older(units, stoch, belief, core):
    """Return the table of PlaNet, V1 or V2: state and hidden layers of 200, latents of `stoch` numbers."""
    model, heads = (
        r"world_model\.",
        r"(world_model\.(decoder\.vectors\.0|reward_head\.trunk)|actor\.trunk|critic\.trunk)\.",
    )
    return {
        model + r"encoder\.vectors\.0": (3, units, 1.0),
        model + r"encoder\.vectors\.[369]": (units, units, 1.0),
        model + r"rssm\.core\.input\.(early|late)": (stoch + 1, 200, 1.0),
        **core,
        model + r"rssm\.prior\.0\.0": (200, 200, 1.0),
        model + r"rssm\.(prior\.1|posterior_output)": (200, belief, 1.0),
        model + r"rssm\.posterior_input\.(early|late)": (200 + units, 200, 1.0),
        heads + "0": (200 + stoch, units, 1.0),
        heads + "[369]": (units, units, 1.0),
        model + r"decoder\.vectors\.1": (units, 3, 1.0),
        r"(world_model\.reward_head\.out|critic\.out|actor\.mean|actor\.std)": (units, 1, 1.0),
    }


GRU = {  # as Keras begins one: glorot for inputs, orthogonal for the state
    r"world_model\.rssm\.core\.cell\.weight_ih": (200, 3 * 200, 1.0),
    r"world_model\.rssm\.core\.cell\.weight_hh": None,
}
GATES = {r"world_model\.rssm\.core\.gates": (200 + 200, 3 * 200, 1.0)}  # one layer of input and state
OF_OLDER = {
    "planet": older(300, 30, 60, GRU),
    "dreamer_v1": older(400, 30, 60, GRU),
    "dreamer_v2": older(400, 32 * 32, 32 * 32, GATES),
}
CUT = 2.0  # standard deviations at which the normal is cut
SPREAD = math.sqrt(1.0 - 2.0 * CUT * math.exp(-2.0) / math.sqrt(2.0 * math.pi) / math.erf(math.sqrt(2.0)))  # 0.8796


def cut_normal(x):
    """Return the distribution function of a normal that is cut at two standard deviations."""
    inside = np.array([math.erf(value / math.sqrt(2.0)) for value in np.clip(x, -CUT, CUT)])
    return 0.5 + 0.5 * inside / math.erf(CUT / math.sqrt(2.0))


@pytest.mark.parametrize(
    ("preset", "table", "fan"),
    [
        (["+preset=dreamer_v3", "+model_size=1m"], OF_2024, lambda reads, writes: reads),
        (["+preset=dreamer_v3_2023"], OF_2023, lambda reads, writes: (reads + writes) / 2),
    ],
)
def test_every_tensor_begins_as_published(preset, table, fan):
    state, matched = initial_state(preset), set()
    for name, tensor in state.items():
        values = tensor.detach().double().numpy().ravel()
        layer, kind = name.removeprefix("slow_").rsplit(".", 1)
        rows = [row for row in table if re.fullmatch(row, layer)]
        if kind == "initial_deter" or kind == "bias":
            assert not values.any(), name
        elif not rows:
            assert tensor.dim() == 1, name  # of a normalisation
            assert (values == 1.0).all(), name
        else:
            assert len(rows) == 1, name
            matched.update(rows)
            check_weight(name, values, table[rows[0]], fan)
    assert matched == set(table)
    for name in state:
        if name.startswith("slow_"):
            assert (state[name] == state[name.removeprefix("slow_")]).all(), name


def initial_state(preset):
    given = ["+environment=tensor_pendulum", "experiment.name=x", "training.total_timesteps=1e6", "+logging=quiet"]
    return dict(assemble(compose([*preset, *given]), Targets(AllowList())).workflow.named_parameters())


@pytest.mark.parametrize("preset", OF_OLDER)
def test_every_tensor_of_the_older_ones_begins_as_keras_does(preset):
    state, table, matched = initial_state([f"+preset={preset}"]), OF_OLDER[preset], set()
    for name, tensor in state.items():
        values = tensor.detach().double().numpy()
        layer, kind = name.removeprefix("slow_").rsplit(".", 1)
        rows = [row for row in table if re.fullmatch(row, layer) or re.fullmatch(row, f"{layer}.{kind}")]
        if kind.startswith("bias"):
            assert not values.any(), name
        elif not rows:
            assert name == "world_model.rssm.core.norm.weight"  # of V2
            assert (values == 1.0).all(), name
        else:
            assert len(rows) == 1, name
            matched.update(rows)
            check_older(name, values, table[rows[0]])
    assert matched == set(table)
    assert all((state[name] == state[name.removeprefix("slow_")]).all() for name in state)


def check_older(name, values, row):
    """Hold a weight against the uniform distribution of Glorot and Bengio, or an orthogonal matrix."""
    if row is None:
        assert values.shape == (600, 200)
        np.testing.assert_allclose(values.T @ values, np.eye(200), atol=1e-5)
        return
    bound, ordered = math.sqrt(6.0 / (row[0] + row[1])), np.sort(values.ravel())
    assert abs(ordered).max() <= bound * 1.0001, name
    ranks = (np.arange(len(ordered)) + 0.5) / len(ordered)
    distance = abs((ordered / bound + 1.0) / 2.0 - ranks).max()
    assert distance <= 2.2 / math.sqrt(len(ordered)), name  # Kolmogorov and Smirnov: one in 10,000


def check_weight(name, values, row, fan):
    """Hold a weight against the normal that is cut at two standard deviations: mean, spread, edge and shape."""
    reads, writes, scale = row
    std, root = scale / math.sqrt(fan(reads, writes)), math.sqrt(len(values))
    if scale == 0.0:
        assert not values.any(), name
        return
    assert abs(values.mean()) <= 4.5 * std / root, name
    assert abs(values.std() / std - 1.0) <= 3.0 / root + 2e-4, name  # five standard deviations of such an estimate
    ordered = np.sort(values) / (std / SPREAD)
    assert abs(ordered).max() <= CUT * 1.0001, name
    expected = cut_normal(ordered[:: max(1, len(ordered) // 2000)])
    ranks = (np.arange(len(ordered)) + 0.5)[:: max(1, len(ordered) // 2000)] / len(ordered)
    assert abs(expected - ranks).max() <= 2.2 / root, name  # Kolmogorov and Smirnov: one in 10,000
