"""Demonstrations that come with the lab, against their environments."""

import hashlib
from functools import partial
from importlib.resources import files

import numpy as np
import pytest
import torch

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter
from rl_lab.buffers.datasets.open import open_dataset, read_episodes
from rl_lab.buffers.datasets.packaged import block_corners
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.core import Box, ConfigError, EnvSpec
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.multigoal import MultiGoal
from rl_lab.environments.pusht import make_env

PUSHT = "gym_pusht/PushT-v0"


def test_pusht_is_what_was_published():
    reader = open_dataset("packaged/pusht")
    assert len(reader.lengths) == 206
    assert sum(reader.lengths) == 25_650
    assert (min(reader.lengths), max(reader.lengths)) == (49, 246)
    text = files("rl_lab").joinpath("data/pusht/PROVENANCE.md").read_text()
    data = files("rl_lab").joinpath("data/pusht/demonstrations.npz").read_bytes()
    assert hashlib.sha256(data).hexdigest() in text
    assert f"{len(data):,} bytes" in text
    first = reader.read(0)
    assert first.observations["state"].shape == (161, 5)
    assert not first.has_final_observation
    assert set(np.unique(first.actions - first.actions.round())) == {0.0}


def test_the_pusher_goes_where_the_demonstrations_say():
    """Steps of the environment from a recorded state, with the recorded action, lead close to the next state."""
    episode, env = open_dataset("packaged/pusht").read(3), make_env(PUSHT)
    env.reset(seed=0)
    states, errors = episode.observations["state"], []
    for t in range(20, 40):
        env.unwrapped.agent.position = tuple(map(float, states[t, :2]))
        before = np.array(env.unwrapped.agent.position)
        env.step(episode.actions[t])
        moved, wanted = np.array(env.unwrapped.agent.position) - before, states[t + 1, :2] - states[t, :2]
        errors.append(np.linalg.norm(moved - wanted) / (1.0 + np.linalg.norm(wanted)))
    assert np.median(errors) < 0.5


def test_corners_and_pictures_are_those_of_the_environment():
    env = GymnasiumEnv(PUSHT, 1, env_kwargs={"obs_type": "environment_state_agent_pos"})
    plain, drawn = (GymnasiumEnv(PUSHT, 1, env_kwargs={"obs_type": kind}) for kind in ("state", "pixels"))
    for each in (env, plain, drawn):
        each.reset(7)
    action = torch.tensor([[300.0, 200.0]])
    reader = open_dataset("packaged/pusht_pixels")
    for _ in range(6):
        corners, state, picture = (each.step(action).observations for each in (env, plain, drawn))
        found = block_corners(state.numpy())
        assert found == pytest.approx(corners["environment_state"].numpy(), abs=1e-3)
        assert np.abs(reader._draw(state[0].numpy()).astype(int) - picture[0].numpy()).max() <= 8  # float32 of a state
    assert reader.read(5).observations["pixels"].shape == (reader.lengths[5], 3, 96, 96)


@pytest.mark.parametrize(
    ("obs_type", "keys"),
    [("state", "state"), ("environment_state_agent_pos", None), ("pixels_agent_pos", None)],
)
def test_every_view_of_pusht_fits_its_environment(obs_type, keys):
    env = GymnasiumEnv(PUSHT, 1, env_kwargs={"obs_type": obs_type}, rescale_actions=True)
    name = "packaged/pusht_pixels" if "pixels" in obs_type else "packaged/pusht"
    into = partial(EpisodeBuffer, batch_size=4, chunk_length=16, history=2)
    limits = {"action_low": 0.0, "action_high": 512.0, "keep_last_step": True}
    buffer = DatasetBuffer(name, into, spec=env.spec, episodes=[1], observation_keys=keys, **limits)
    assert buffer.size == 118
    batch = buffer.sample()
    assert batch["actions"].shape == (4, 16, 2)
    low, high = buffer.limits("actions")
    assert bool((low >= -1).all() and (high <= 1).all() and (high > low).all())


def test_two_roads_lead_to_both_goals_and_nowhere_else():
    env = MultiGoal(64, report_goals=True)
    ends = []
    for number, episode in enumerate(read_episodes("packaged/two_roads")):
        assert len(episode) < 30
        assert episode.observations[1:] == pytest.approx(episode.observations[:-1] + episode.actions[:-1], abs=1e-5)
        assert np.abs(episode.actions).max() < 1.0
        ends.append(episode.final_observation)
        assert np.linalg.norm(ends[-1] - [-5.0 if number % 2 else 5.0, 0.0]) < 1.0
    env.reset(0)
    env._state["position"] = torch.tensor(np.array(ends))
    infos = env.step(torch.zeros(64, 2)).infos
    assert infos["at_east"].sum() == infos["at_west"].sum() == 32


def test_demonstrations_that_do_not_fit_are_one_line(tmp_path):
    env = GymnasiumEnv(PUSHT, 1, env_kwargs={"obs_type": "state"}, rescale_actions=True)
    into = partial(EpisodeBuffer, batch_size=4, chunk_length=16)
    make = partial(DatasetBuffer, "packaged/pusht", into, episodes=[2], keep_last_step=True)
    limits = {"action_low": 0.0, "action_high": 512.0}
    with pytest.raises(
        DatasetError, match=r"^packaged/pusht, episode 2: actions lie in \[[0-9, ]+\], the environment ta"
    ):
        make(spec=env.spec, observation_keys="state")
    with pytest.raises(
        DatasetError, match=r"^packaged/pusht, episode 2: observations are \[16\], the environment has \[5"
    ):
        make(spec=env.spec, observation_keys="environment_state", **limits)
    other = EnvSpec("x", Box((5,)), Box((3,), low=-1.0, high=1.0))
    with pytest.raises(DatasetError, match=r"^packaged/pusht, episode 2: actions are \[2\], the environment has \[3\]"):
        make(spec=other, observation_keys="state", **limits)
    slow = EnvSpec("x", Box((5,)), env.spec.action, steps_per_second=20.0)
    with pytest.raises(
        DatasetError, match=r"^packaged/pusht has 10 steps per second, 'x' has 20: its actions would mean"
    ):
        make(spec=slow, observation_keys="state", **limits)
    with LeRobotWriter(tmp_path / "fast", fps=30) as writer:
        writer.save(open_dataset("packaged/pusht").read(0))
    with pytest.raises(DatasetError, match=r"fast has 30 steps per second, 'gym_pusht/PushT-v0' has 10"):
        DatasetBuffer(str(tmp_path / "fast"), into, spec=env.spec, observation_keys="state", **limits)
    with pytest.raises(
        ConfigError, match=r"^unknown packaged dataset 'push'; did you mean 'pusht'\? \(choices: pusht, pu"
    ):
        open_dataset("packaged/push")
