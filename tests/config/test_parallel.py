"""What is refused where several processes train one run, and what each of them draws."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import rl_lab
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.execution import reject_compiled_ranks
from rl_lab.config.parallel import ABLE, joined, num_wanted, reject_sharded, settle_devices
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError, Workflow
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.orchestration.static_step import StaticSteps
from tests.distributed.rank_work import SFT, SHARDED

COLLECTS = "training.phases.0.workflow_hooks=[{collect: 1}, update_policy]"


class Second(Ranks):
    """One of two ranks that needs nobody to answer."""

    rank, size = 1, 2


class Sharing(Second):
    """One of two ranks which has the whole of what it should have a part of."""

    def shard(self, whole, blocks):
        return SimpleNamespace(parameters=list(whole.module.parameters()), whole=nullcontext)


def made(*overrides, ranks=ALONE):
    return assemble(compose([*overrides, "budget=tiny", "logging=quiet"]), Targets(AllowList()), ranks=ranks)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+experiment=random_cartpole"], "experiment.devices: RandomPolicy trains in one process, not in 2"),
        (["+experiment=dreamer_cartpole", "experiment.num_seeds=2"], "2 processes cannot have experiment.num_seeds"),
        (["+experiment=distill_cartpole"], "2 processes cannot have training.teacher"),
    ],
)
def test_what_knows_only_one_process_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        made(*overrides, ranks=Second())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.average_power=0.75", "algorithm.average_power: sharded weights have no average"),
        ("experiment.debug=true", "experiment.debug: must be false where algorithm.shard_weights is true"),
        ("training.video_frequency=100", "training.video_frequency: must be null where algorithm.shard_weights is"),
        (COLLECTS, "training.phases: no phase may collect; demonstrations come from files"),
    ],
)
def test_what_sharded_weights_cannot_do_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        made(*SFT, *SHARDED, "experiment.device=cpu", override, ranks=Sharing())


def test_updates_of_sharded_weights_run_eager():
    config = {"experiment": {"compile": "auto", "debug": False}, "training": {"video_frequency": None}}
    static, workflow = StaticSteps("captured"), SimpleNamespace(shards=object())
    reject_sharded(config, (), workflow, static)
    assert static.execution == "eager"
    config["experiment"]["compile"] = "captured"
    with pytest.raises(ConfigError, match="experiment.compile: updates run eager where algorithm.shard_weights"):
        reject_sharded(config, (), workflow, StaticSteps("captured"))
    workflow.shards = None
    reject_sharded(config, (), workflow, StaticSteps("captured"))


def test_the_workflows_that_the_refusal_names_are_those_that_can():
    files = Path(rl_lab.__file__).parent.glob("configs/workflow/*.yaml")
    packaged = [Targets(AllowList()).load("workflow", yaml.safe_load(file.read_text()), Workflow) for file in files]
    assert {kind.__name__ for kind in packaged if kind.reduces_over_ranks} == set(ABLE.split(", "))


def test_the_number_of_processes_is_the_one_that_was_started(monkeypatch):
    composed = compose(["+experiment=ppo_cartpole", "experiment.devices=3"])
    assert num_wanted(composed) == 3
    with pytest.raises(ConfigError, match="3 processes are asked for, but 2 were started"):
        settle_devices(composed, Second())
    assert settle_devices(compose(["+experiment=ppo_cartpole"]), Second()).experiment.devices == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = compose(["+experiment=ppo_cartpole", "experiment.device=cuda:0"])
    with pytest.raises(ConfigError, match="'cuda:0' is one GPU for 2 processes"), joined(given):
        pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined(composed) as ranks:
        assert ranks is ALONE


def test_updates_that_join_gradients_are_not_compiled():
    static = StaticSteps("compiled")
    reject_compiled_ranks({"experiment": {"compile": "auto"}}, static, Second())
    assert static.execution == "eager"
    with pytest.raises(ConfigError, match="cannot join the gradients of 2 processes"):
        reject_compiled_ranks({"experiment": {"compile": "compiled"}}, StaticSteps("compiled"), Second())
    reject_compiled_ranks({"experiment": {"compile": "compiled"}}, StaticSteps("compiled"), ALONE)


def test_ranks_begin_with_the_same_weights_and_draw_apart():
    first = made("+experiment=sac_pendulum")
    drawn = torch.rand(3)
    second = made("+experiment=sac_pendulum", ranks=Second())
    assert not torch.equal(drawn, torch.rand(3))
    for name, weight in first.workflow.state_dict().items():
        assert torch.equal(weight, second.workflow.state_dict()[name])
    assert first.context.rng.seed("collect") != second.context.rng.seed("collect")


def test_scales_of_world_models_follow_all_ranks():
    ranks = Second()
    assert made("+experiment=dreamer_cartpole", ranks=ranks).workflow.return_scale.ranks is ranks
    assert made("+experiment=tdmpc2_pendulum_tensor", ranks=ranks).workflow.value_spread.ranks is ranks
    assert made("+experiment=dreamer_cartpole").workflow.return_scale.ranks is ALONE
