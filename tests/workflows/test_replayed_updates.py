"""Updates of world models and of policies that denoise: replayed graphs compute what eager updates do."""

import json
from itertools import pairwise

import pytest
import torch

from rl_lab.core import tree_map
from rl_lab.orchestration.static_step import StaticSteps
from tests.killed_on_gpu import assert_a_killed_run_ends_in_the_same_bits
from tests.workflows.replays import WARM_UP_CALLS, Updates, assert_alike, assert_the_same_bits
from tests.workflows.test_dreamer import SHALLOW, SIZES

HEADS = ("components.world_model.reward", "components.critic")
LIVELY = tuple(f"++{head}.{option}" for head in HEADS for option in ("limit=3.0", "scale=1.0"))  # values that are not 0
PENDULUM = ("+environment=tensor_pendulum", "environment.num_envs=3", "experiment.name=x", "budget=tiny")
SMALL = ("training.total_timesteps=100_000", "buffers.replay.batch_size=4", "buffers.replay.sequence_length=6")
DREAMER = {
    name: ([f"+preset={name}", "+environment=tensor_pendulum", *SIZES, *SHALLOW, *LIVELY], {})
    for name in ("dreamer_v1", "dreamer_v2", "dreamer_v3_2023", "dreamer_v3")
}
CASES = {
    **DREAMER,
    "planet": (["+preset=planet", *PENDULUM, *SMALL], {"hook": "update_world_model"}),
    "tdmpc": (["+preset=tdmpc", *PENDULUM, *SMALL], {}),
    "tdmpc2": (["+preset=tdmpc2", *PENDULUM, *SMALL], {}),
    "vae": (["+experiment=world_models_cartpole", "budget=tiny"], {"hook": "update_vae"}),
    "memory": (["+experiment=world_models_cartpole", "budget=tiny"], {"hook": "update_memory"}),
    "diffusion": (
        ["+experiment=diffusion_two_roads", "budget=tiny"],
        {"hook": "update_policy", "buffer": "demonstrations"},
    ),
    "flow": (
        ["+experiment=flow_pusht", "budget=tiny"],
        {"hook": "update_policy", "buffer": "demonstrations"},
    ),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(case, way, *, device="cpu", **options):
    """Return a small agent, the same for the same case."""
    overrides, named = CASES[case]
    if "+experiment=flow_pusht" in overrides:
        pytest.importorskip("gym_pusht")
    return Updates(overrides, **named, device=device, compile=way, **options)


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_replayed_updates_are_eager_ones_on_a_gpu(case):
    begin = make(case, "eager", device="cuda").begin(40)
    eager = make(case, "eager", device="cuda").calls(*begin)
    for way in ("compiled", "captured"):
        found = make(case, way, device="cuda").calls(*begin)
        assert_alike(found, eager)
    again = make(case, "captured", device="cuda").calls(*begin)
    assert_the_same_bits(again, found)


@needs_gpu
@pytest.mark.parametrize("case", ["dreamer_v3", "dreamer_v3_2023", "dreamer_v1"])
def test_replayed_updates_of_several_agents_are_eager_ones_on_a_gpu(case):
    begin = make(case, "eager", device="cuda", num_seeds=8).begin(40)
    eager = make(case, "eager", device="cuda", num_seeds=8).calls(*begin)
    found = make(case, "captured", device="cuda", num_seeds=8).calls(*begin)
    assert_alike(found, eager)
    again = make(case, "captured", device="cuda", num_seeds=8).calls(*begin)
    assert_the_same_bits(again, found)


@needs_gpu
@pytest.mark.parametrize("case", ["dreamer_v3", "dreamer_v3_2023", "dreamer_v1", "planet", "tdmpc2"])
def test_replayed_updates_in_low_precision_are_near_eager_ones_on_a_gpu(case):
    begin = make(case, "eager", device="cuda").begin(40)
    exact = make(case, "eager", device="cuda").calls(*begin)
    low = make(case, "captured", device="cuda", precision="bfloat16").calls(*begin)
    for name in exact[0][0]:
        if name.endswith("loss"):
            mean, own = (torch.stack([row[0][name] for row in rows[WARM_UP_CALLS:]]).mean() for rows in (low, exact))
            torch.testing.assert_close(mean, own, rtol=0.05, atol=0.05, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("case", CASES)
def test_calls_from_one_state_are_the_same_twice(case):
    begin = make(case, "eager").begin(40)
    first = make(case, "eager").calls(*begin)
    again = make(case, "eager").calls(*begin)
    assert_the_same_bits(again, first)
    assert_alike(again, first)
    for one, two in pairwise(first):  # batch and noise are each call's own
        assert any(not torch.equal(value, two[0][name]) for name, value in one[0].items())


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_what_is_compared_of_a_gradient_that_is_zero_is_no_rounding():
    """Other convolutions, as a GPU has: of biases that a normalisation takes away there is nothing but rounding."""
    begin = make("diffusion", "eager").begin(40)
    agent = make("diffusion", "eager")
    expected = agent.calls(*begin)
    with torch.backends.mkldnn.flags(enabled=False):
        found = make("diffusion", "eager").calls(*begin)
    names = [name for name, _ in agent.workflow.policy.named_parameters()]
    numbers = [names.index(name) for name in names if name.endswith("convolution.bias")]
    apart = []
    for number in numbers:
        mine, own = (rows[-1][2][f"policy/{number}/exp_avg"] for rows in (found, expected))
        apart.append(float((mine - own).norm() / own.norm()))
    assert min(apart) > 0.1
    assert_alike(found, expected)


@pytest.mark.parametrize("forgets", ["results", "batch"])
def test_a_replay_that_is_none_is_noticed(forgets, monkeypatch):
    begin = make("dreamer_v3", "eager").begin(40)
    eager = make("dreamer_v3", "eager").calls(*begin)
    monkeypatch.setattr(StaticSteps, "__call__", lambda self, function: Stale(function, forgets))
    found = make("dreamer_v3", "eager").calls(*begin)
    with pytest.raises(AssertionError):
        assert_alike(found, eager)


class Stale:
    """Does what a broken capture would: the calls after the warm-up give its results, or take its batch."""

    def __init__(self, function, forgets):
        self.function, self.forgets, self.calls = function, forgets, 0

    def __call__(self, *args):
        self.calls += 1
        if self.calls <= WARM_UP_CALLS:
            self.args, self.result = args, tree_map(torch.clone, self.function(*args))
            return self.result
        return self.result if self.forgets == "results" else self.function(*self.args)


@needs_gpu
@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_killed_run_of_captured_updates_ends_in_the_same_bits_on_a_gpu(num_seeds, tmp_path):
    overrides = ["+experiment=dreamer_cartpole", "budget=tiny", *SHALLOW, "training.checkpoint_frequency=8"]
    overrides += ["experiment.device=cuda", "experiment.deterministic=true", f"experiment.num_seeds={num_seeds}"]
    assert_a_killed_run_ends_in_the_same_bits(overrides, tmp_path, kill_at=11)  # of 17: it replays by then
    assert json.loads((tmp_path / "killed" / "manifest.json").read_text())["updates"] == "captured"
