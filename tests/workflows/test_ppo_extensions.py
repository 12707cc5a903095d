"""PPO's extensions in whole runs: stopped and resumed they end in the same bits, and what does not fit is told."""

from contextlib import nullcontext

import pytest
import torch

from rl_lab.components.extension import Extension, shuffled_parts
from rl_lab.components.mlp import MLP
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError, tree_map
from rl_lab.environments.pendulum import Pendulum
from rl_lab.tracking.fingerprint import fingerprint
from tests.no_looks import NoLooks
from tests.workflows.parts import collect, make_collector, make_ppo, phase
from tests.workflows.teaching import TINY, composed, newest_state, train

torch.set_num_threads(1)
EXPERIMENTS = ("ppo_amp_circle", "ppo_estimator_pendulum", "ppo_pendulum_symmetric", "ppo_rnd_lock")
ROLES = ("actor", "critic")
MORE = (
    "environment.num_envs=3",
    "training.total_timesteps=144",
    "training.eval_frequency=null",
    "algorithm.num_epochs=1",
)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_stopped_run_ends_in_the_same_bits(experiment, tmp_path):
    config = composed(experiment, tmp_path, *TINY, *MORE)
    whole = train(config, tmp_path, "whole")
    parted = train(config, tmp_path, "parted", stop_at=4)  # actions: in the middle of a cycle
    train(config, tmp_path, "parted")
    assert fingerprint(parted) == fingerprint(whole)
    state = newest_state(whole)
    assert any(key.startswith("extensions.") for key in state["workflow"]) or experiment == "ppo_pendulum_symmetric"


def test_all_of_them_together(tmp_path):
    """The mirror image of what the actor reads has an estimate of its own, and curiosity pays beside style."""
    parts = (
        "+components@components.rnd=rnd",
        "components.rnd.key=critic",
        "+components@components.symmetry=symmetry",
        "components.symmetry.loss_coef=0.5",
        "components.symmetry.observation={actor: [[0,1], [1,-1], [2,1], [3,-1]], critic: [[0,1], [1,-1], [2,-1]]}",
        "components.symmetry.action=[[0, -1]]",
    )
    run = train(composed("ppo_estimator_pendulum", tmp_path, *TINY, *MORE, *parts), tmp_path, "all")
    state = newest_state(run)
    assert {"policy", "estimator", "rnd"} == set(state["optimizers"])
    rows = (run.path / "metrics.jsonl").read_text()
    assert all(name in rows for name in ("asymmetry", "intrinsic_reward", "estimator_loss"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_nothing_waits_for_the_device(experiment, tmp_path):
    parts = assemble(composed(experiment, tmp_path, *TINY, "experiment.device=cpu"), Targets(AllowList()))
    workflow, collector = parts.workflow, make_collector(parts.env)
    for watch in (nullcontext(), NoLooks()):
        batch = collect(collector, workflow, 4)
        obs, first = tree_map(lambda x: x[0], batch["observations"]), batch["is_first"][0]
        with watch:
            workflow.act(obs, None, is_first=first, explore=True, step=0)
            workflow.update_policy(batch, phase=phase(0.5))
            if experiment == "ppo_amp_circle":
                workflow.update_discriminator(phase=phase())


class Doubling(Extension):
    """Learns from twice the reward and says so."""

    def rewards(self, batch, rewards, progress):
        return 2.0 * rewards

    def learn(self, batch, policy):
        return {"progress": torch.ones(())}


def test_an_extension_overrides_only_what_it_is_about():
    env = Pendulum(4, max_episode_steps=9)
    ours, plain = make_ppo(env.spec, extensions={"rnd": Doubling()}, gamma=0.0), make_ppo(env.spec, gamma=0.0)
    batch = collect(make_collector(env), plain, 8)
    twice, once = (torch.as_tensor(workflow._evaluate(batch)[0]["targets"]) for workflow in (ours, plain))
    torch.testing.assert_close(twice, 2.0 * once, rtol=1e-4, atol=1e-4)
    assert ours.update_policy(batch, phase=phase())["progress"] == 1.0
    assert ours.get_state() == {"extensions": {"rnd": {}}}
    ours.set_state(ours.get_state())
    assert plain.get_state() == {}


def test_components_that_are_no_extensions_are_refused():
    env = Pendulum(4)
    with pytest.raises(ConfigError, match=r"components\.rnd: needs an extension of PPO, not MLP"):
        make_ppo(env.spec, extensions={"rnd": MLP(3, [4])})


def test_small_networks_leave_numpy_only_for_extensions():
    env = Pendulum(4)
    kinds = [type(make_ppo(env.spec, extensions=part).networks).__name__ for part in (None, {"rnd": Doubling()})]
    assert kinds == ["PairedActorCritic", "FlatActorCritic"]


def test_parts_hold_every_row_once():
    parts = list(shuffled_parts(10, 2, 3, torch.device("cpu")))
    assert [len(part) for part in parts] == [4, 4, 2] * 2
    assert sorted(torch.cat(parts[:3]).tolist()) == list(range(10))


def test_a_privileged_teacher_and_a_blind_student_share_a_dict(tmp_path):
    """The teacher reads `critic`, which the student has no part of; the student reads `actor`."""
    parts = "environment.wrappers=[{observation_parts: {parts: {actor: [0, 2], critic: null}}}]"
    reader = "{critic: {_target_: rl_lab.components.mlp.MLP, input_dim: 4}}"
    trunks = [(f"components@components.{name}=dict_encoder", f"components.{name}.encoders={reader}") for name in ROLES]
    overrides = (*TINY, parts, "environment.num_envs=3", *(line for pair in trunks for line in pair))
    teacher = composed("ppo_cartpole", tmp_path, *overrides)
    train(teacher, tmp_path, "teacher")
    learned = (f"training.teacher.run={tmp_path / 'teacher'}", "training.teacher.privileged=[critic]")
    named = (*learned, "training.teacher.observation_keys=null")
    student = train(composed("distill_cartpole", tmp_path, *TINY, parts, *named), tmp_path, "student")
    inputs = [w for name, w in newest_state(student)["workflow"].items() if "memory" in name and "weight_ih" in name]
    assert [weight.shape[1] for weight in inputs] == [2]  # it reads `actor` alone
