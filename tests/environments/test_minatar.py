"""What the games of MinAtar share: actions, sticky actions, the picture, exact state, speed."""

import pytest
import torch

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.components.cnn import CNN
from rl_lab.components.observation import ObservationReader
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import dims
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.core import Box, ConfigError, Discrete, tree_stack
from rl_lab.environments.checking.bench import steps_per_s
from rl_lab.environments.minatar.asterix import MinAtarAsterix
from rl_lab.environments.minatar.breakout import MinAtarBreakout
from rl_lab.environments.minatar.freeway import MinAtarFreeway
from rl_lab.environments.minatar.space_invaders import MinAtarSpaceInvaders
from tests.environments.minatar_scenes import DOWN, FIRE, LEFT, NONE, RIGHT, UP, act
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)

GAMES = [MinAtarBreakout, MinAtarAsterix, MinAtarFreeway, MinAtarSpaceInvaders]
USEFUL = {
    MinAtarBreakout: [NONE, LEFT, RIGHT],
    MinAtarAsterix: [NONE, LEFT, UP, RIGHT, DOWN],
    MinAtarFreeway: [NONE, UP, DOWN],
    MinAtarSpaceInvaders: [NONE, LEFT, RIGHT, FIRE],
}
OPTIONS = ["breakout", "asterix", "freeway", "space_invaders"]
games = pytest.mark.parametrize("game", GAMES)


@games
def test_the_picture_is_bytes_that_a_network_reads_as_zeros_and_ones(game):
    env = game(8)
    channels = {MinAtarBreakout: 4, MinAtarAsterix: 4, MinAtarFreeway: 7, MinAtarSpaceInvaders: 6}[game]
    assert env.spec.observation == Box((channels, 10, 10), torch.uint8, low=0, high=255)
    env.reset(0)
    pictures = torch.stack([env.step(action).observations for action in random_actions(env.spec, 8, 60)])
    assert set(pictures.unique().tolist()) == {0, 255}
    assert pictures.is_contiguous()
    reader = ObservationReader(env.spec.observation, keep_dict=False)
    cnn = CNN([channels, 10, 10], channels=[16], kernel_sizes=[3], strides=[1], output_dim=128)
    read, mask = reader(pictures)
    assert mask is None
    torch.testing.assert_close(cnn(read), cnn((pictures > 0).float()))


@games
def test_minimal_actions_are_those_of_the_six_that_do_something(game):
    env, full = game(16, minimal_actions=True), game(16)
    assert (env.spec.action, full.spec.action) == (Discrete(len(USEFUL[game])), Discrete(6))
    assert_equal(env.reset(1), full.reset(1))
    for action in random_actions(env.spec, 16, 120):
        assert_equal(env.step(action), full.step(torch.tensor(USEFUL[game])[action]))


@games
def test_other_actions_do_nothing(game):
    env, idle = game(16, repeat_action_probability=0.0), game(16, repeat_action_probability=0.0)
    assert_equal(env.reset(1), idle.reset(1))
    useless = [action for action in range(6) if action not in USEFUL[game]]
    for t in range(40):
        assert_equal(act(env, useless[t % len(useless)]), act(idle, NONE))


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_sticky_actions_take_the_one_before_instead(share):
    env = MinAtarFreeway(2000, repeat_action_probability=share)  # no episode ends within the test
    env.reset(2)
    before, num_kept = torch.full((2000,), NONE), 0
    for action in random_actions(env.spec, 2000, 20):
        action = torch.where(action == before, (action + 1) % 6, action)
        env.step(action)
        taken = env.get_state()["dynamics"]["last_action"]
        assert ((taken == action) | (taken == before)).all()
        num_kept += int((taken == before).sum())
        before = taken
    # A share of 0.1 among 40,000 has a standard error of 0.0015.
    assert num_kept / 40_000 == pytest.approx(share, abs=0.006 * (0 < share < 1))
    assert share < 1 or (before == NONE).all()


def test_an_episode_forgets_the_actions_of_the_one_before():
    env = MinAtarBreakout(64)
    env.reset(0)
    for t in range(1, 31):
        step = act(env, RIGHT)[0]
        assert (step.terminated == (t % 6 == 0)).all()  # the ball falls for six steps, and the paddle is elsewhere
        kept = env.get_state()["dynamics"]["last_action"]
        assert (kept == NONE).all() if t % 6 == 0 else (kept == RIGHT).any()


@games
def test_episodes_are_cut_at_the_limit(game):
    env = game(4, max_episode_steps=5)
    env.reset(0)
    steps = act(env, *[NONE] * 10)
    assert [step.truncated.tolist() for step in steps] == [[t in (5, 10)] * 4 for t in range(1, 11)]
    assert not any(step.terminated.any() for step in steps)
    assert game(1).spec.max_episode_steps is None


@games
def test_state_continues_to_the_bit(game):
    env, other, again = game(6), game(6), game(6)
    env.reset(1)
    again.reset(1)
    other.reset(2)
    actions = random_actions(env.spec, 6, 260)
    for action in actions[:130]:
        assert_equal(env.step(action), again.step(action))
    other.set_state(env.get_state())
    for action in actions[130:]:
        assert_equal(env.step(action), other.step(action))


@games
def test_a_seed_decides_and_nothing_outside_is_drawn(game):
    def play(seed):
        env = game(32)
        return torch.stack([env.reset(seed), *(env.step(a).observations for a in random_actions(env.spec, 32, 40))])

    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = play(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(play(3), first)
    assert not torch.equal(play(4), first)


@pytest.mark.parametrize("option", OPTIONS)
def test_configs_build_with_the_network_of_the_paper(option):
    overrides = [f"environment=minatar_{option}", "components@components.encoder=cnn_minatar"]
    composed, targets = compose(["+experiment=ppo_pong", *overrides, "environment.num_envs=3"]), Targets(AllowList())
    node = targets.check("environment", resolve(composed)["environment"], supplied=("device",))
    env = targets.instantiate("environment", node, device="cpu")
    assert env.spec.id == f"tensor/MinAtar-{option.title().replace('_', '')}"
    assert env.spec.max_episode_steps == (2500 if option == "freeway" else 10_000)
    config = resolve(composed, dims(env.spec))["components"]
    encoder = targets.instantiate("components.encoder", targets.check("components.encoder", config["encoder"]))
    channels = env.spec.observation.shape[0]
    # 16 filters of 3 x 3, then 128 units that read 8 x 8 places of each; weights and biases.
    expected = (channels * 9 + 1) * 16 + (16 * 8 * 8 + 1) * 128
    assert sum(parameter.numel() for parameter in encoder.parameters()) == expected
    assert encoder(env.reset(0)).shape == (3, config["actor"]["input_dim"]) == (3, 128)


@games
def test_a_replay_buffer_takes_about_a_byte_per_cell(game):
    env = game(1, max_episode_steps=50)
    buffer = ReplayBuffer(2000, 64, min_size=1, num_envs=1, spec=env.spec)
    rows, obs, is_first = [], env.reset(0), torch.ones(1, dtype=torch.bool)
    for action in random_actions(env.spec, 1, 300):
        step = env.step(action)
        parts = {key: part for key, part in step._asdict().items() if key not in ("observations", "infos")}
        rows.append({"observations": obs, "actions": action, "is_first": is_first, **parts})
        obs, is_first = step.observations, step.terminated | step.truncated
    buffer.add(tree_stack(rows))
    batch = buffer.sample()
    for index, before, after in zip(batch["indices"], batch["observations"], batch["next_observations"], strict=True):
        assert torch.equal(before, rows[index]["observations"][0])
        assert torch.equal(after, rows[index]["final_observations"][0])
    cells = env.spec.observation.shape[0] * 100
    # A picture is stored once, although it ends a step and begins the next; an eighth is kept for the ends of episodes.
    assert buffer.footprint()[0].num_bytes / 2000 < 1.14 * cells + 64


def test_thousands_of_copies_step_at_once():
    single, many = (steps_per_s(MinAtarBreakout(num_envs), 0.05) for num_envs in (1, 1024))
    assert many > 30 * single


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_a_wrong_probability_is_named(probability):
    with pytest.raises(ConfigError, match=f"environment.repeat_action_probability .* got {probability}"):
        MinAtarBreakout(1, repeat_action_probability=probability)
