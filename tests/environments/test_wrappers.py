"""Every wrapper of the `wrappers:` list: its numbers, its place in a config and what is said of a wrong one."""

import inspect
import pickle
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from omegaconf import OmegaConf

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.wrappers.wrapping import WRAPPERS, build_wrappers, episode_limit, frames_per_step
from tests.environments.ramps import Film, Ramp
from tests.environments.rollouts import assert_equal, random_actions
from tests.film_reader import read_film

torch.set_num_threads(1)
RAMP, FILM = "tests.environments.ramps:make_ramp", "tests.environments.ramps:make_film"


def wrap(env, *entries):
    for wrapper in build_wrappers(entries):
        env = wrapper(env)
    env.reset(seed=0)
    return env


def roll(env, actions):
    return [env.step(action) for action in actions]


def flags(steps):
    return [(terminated, truncated) for _, _, terminated, truncated, _ in steps]


NOTHING = np.zeros(2, np.float32)


def test_a_time_limit_truncates():
    env = wrap(Ramp(length=4), {"time_limit": 3})
    assert flags(roll(env, [NOTHING] * 3)) == [(False, False), (False, False), (False, True)]
    env.reset()
    assert flags(roll(env, [NOTHING] * 2)) == [(False, False)] * 2


def test_the_end_of_the_task_at_the_limit_is_no_truncation():
    assert flags(roll(wrap(Ramp(length=3), {"time_limit": 3}), [NOTHING] * 3))[-1] == (True, False)


@pytest.mark.parametrize(("inner", "outer"), [(2, 5), (5, 2)])
def test_of_nested_limits_the_shorter_one_counts(inner, outer):
    env = wrap(gymnasium.wrappers.TimeLimit(Ramp(), inner), {"time_limit": outer})
    assert flags(roll(env, [NOTHING] * 2)) == [(False, False), (False, True)]
    assert episode_limit(env) == 2


def test_action_repeat_sums_rewards_and_stops_with_the_episode():
    env = wrap(Ramp(length=7), {"action_repeat": 3})
    steps = roll(env, [NOTHING] * 3)
    assert [step[1] for step in steps] == [1 + 2 + 3, 4 + 5 + 6, 7]
    assert [step[0].tolist() for step in steps] == [[3, 30], [6, 60], [7, 70]]
    assert flags(steps) == [(False, False), (False, False), (True, False)]


def test_what_nobody_sees_is_not_drawn():
    class Slow(Ramp):
        is_watched = True

        def observe(self):
            return super().observe() if self.is_watched or self.steps in (0, self.length) else None

    env = wrap(Slow(length=7), {"action_repeat": 3})
    assert [step[0].tolist() for step in roll(env, [NOTHING] * 3)] == [[3, 30], [6, 60], [7, 70]]
    env.reset()
    assert env.unwrapped.is_watched


def test_limits_and_frames_multiply_through_the_layers():
    entries = [{"time_limit": 100}, {"action_repeat": 3}, {"action_repeat": 2}, {"time_limit": 50}]
    env = GymnasiumEnv(RAMP, 1, wrappers=entries)
    assert (env.spec.action_repeat, env.spec.max_episode_steps) == (6, 17)  # ceil(ceil(100 / 3) / 2)
    assert frames_per_step(wrap(Ramp())) == 1
    assert episode_limit(wrap(Ramp())) is None


def test_frames_of_a_vector_are_joined_newest_last():
    env = wrap(Ramp(), {"frame_stack": 3})
    assert env.observation_space == spaces.Box(-1000, 1000, (6,), np.float32)
    assert env.reset()[0].tolist() == [0, 0, 0, 0, 0, 0]
    assert [step[0].tolist() for step in roll(env, [NOTHING] * 3)] == [
        [0, 0, 0, 0, 1, 10],
        [0, 0, 1, 10, 2, 20],
        [1, 10, 2, 20, 3, 30],
    ]


def test_frames_of_pictures_become_channels():
    gray, colour = wrap(Film(kind="gray"), {"frame_stack": 4}), wrap(Film(), {"frame_stack": 2})
    assert (gray.observation_space.shape, colour.observation_space.shape) == ((5, 7, 4), (5, 7, 6))
    assert [step[0][0, 0].tolist() for step in roll(gray, [0] * 2)] == [[0, 0, 0, 1], [0, 0, 1, 2]]
    assert [step[0][4, 6].tolist() for step in roll(colour, [0] * 2)] == [[0, 0, 0, 1, 0, 0], [1, 0, 0, 2, 0, 0]]


def test_stacked_pictures_reach_the_policy_channels_first():
    env = GymnasiumEnv(FILM, 1, env_kwargs={"kind": "gray"}, wrappers=[{"frame_stack": 4}])
    assert env.spec.observation.shape == (4, 5, 7)
    env.reset(0)
    assert env.step(torch.zeros(1, dtype=torch.int64)).observations[0, :, 2, 3].tolist() == [0, 0, 0, 1]


def test_entries_of_a_dict_are_chosen_by_key():
    env = wrap(Film(kind="dict"), "grayscale", {"resize": {"size": [10, 14]}}, {"frame_stack": {"frames": 2}})
    shapes = {key: space.shape for key, space in env.observation_space.spaces.items()}
    assert shapes == {"camera": (10, 14, 2), "place": (4,), "action_mask": (3,)}
    obs = env.step(0)[0]
    assert {key: value.shape for key, value in obs.items()} == shapes
    assert obs["place"].tolist() == [0, 0, 1, 10]
    only = wrap(Film(kind="dict"), {"frame_stack": {"frames": 2, "keys": ["place"]}})
    assert only.step(0)[0]["camera"].shape == (5, 7, 3)


def test_grayscale_and_resize_are_opencvs():
    cv2 = pytest.importorskip("cv2")
    picture = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)

    class Still(Film):
        def observe(self):
            return picture

    still = Still()
    still.observation_space = spaces.Box(0, 255, picture.shape, np.uint8)
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    assert np.array_equal(wrap(still, "grayscale").step(0)[0], gray)
    assert np.array_equal(wrap(still, {"grayscale": True}).step(0)[0], gray[..., None])
    small = cv2.resize(gray, (21, 17), interpolation=cv2.INTER_AREA)
    assert np.array_equal(wrap(still, "grayscale", {"resize": [17, 21]}).step(0)[0], small)
    assert np.array_equal(wrap(still, {"grayscale": True}, {"resize": [17, 21]}).step(0)[0], small[..., None])
    deep = wrap(still, {"frame_stack": 4}, {"resize": 16}).step(0)[0]
    assert np.array_equal(deep[..., 9:], cv2.resize(picture, (16, 16), interpolation=cv2.INTER_AREA))


def test_clipped_actions():
    own, narrow = Ramp(), Ramp()
    wrap(own, "clip_actions").step(np.array([3, -2], np.float32))
    env = wrap(narrow, {"clip_actions": [-0.5, 4]})
    env.step(np.array([3, 9], np.float32))
    env.step(np.array([-3, -9], np.float32))
    assert (own.taken, narrow.taken) == ([[1, 0]], [[1, 4], [-0.5, 0]])
    assert (env.action_space.low.tolist(), env.action_space.high.tolist()) == ([-0.5, 0], [1, 4])


def test_rescaled_actions_are_gymnasiums():
    ours, theirs = Ramp(length=99), Ramp(length=99)
    env = wrap(ours, "rescale_actions")
    other = gymnasium.wrappers.RescaleAction(theirs, np.float32(-1), np.float32(1))
    assert env.action_space == other.action_space == spaces.Box(-1, 1, (2,), np.float32)
    for action in np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32):
        env.step(action)
        other.step(action)
    np.testing.assert_allclose(ours.taken, theirs.taken, rtol=1e-6, atol=1e-6)
    env.step(np.array([-1, 1], np.float32))
    env.step(np.array([-7, 7], np.float32))
    assert ours.taken[-2:] == [[-1, 10], [-1, 10]]


def test_sticky_actions_take_the_previous_one_as_often_as_said():
    ramp = Ramp(length=10**6)
    env = wrap(ramp, "sticky_actions")
    for count in range(4000):
        env.step(np.array([0, count], np.float32))
    kept = np.diff([action[1] for action in ramp.taken]) == 0
    assert abs(kept.mean() - 0.25) < 4 * (0.25 * 0.75 / len(kept)) ** 0.5
    always = Ramp()
    env = wrap(always, {"sticky_actions": 1.0})
    for count in range(3):
        env.step(np.array([0, count], np.float32))
    assert always.taken == [[0, 0]] * 3


def test_sticky_actions_survive_an_environment_that_writes_into_its_action():
    env = GymnasiumEnv("Zoo/Echo-v0", 1, env_kwargs={"own_bounds": False}, wrappers=[{"sticky_actions": 1.0}])
    env.reset(0)
    seen = [env.step(torch.tensor([[1.5, value]])).observations.tolist() for value in (1.0, 2.0, 2.0)]
    assert seen == [[[1.5, 1.0]]] * 3


def test_actions_that_are_dicts_are_repeated_and_kept_though_the_environment_writes_into_them():
    action = {"gear": torch.tensor([2]), "pedals": torch.tensor([[4.0, 1.0]])}
    other = {"gear": torch.tensor([0]), "pedals": torch.zeros(1, 2)}
    for wrapper in ({"sticky_actions": 1.0}, {"action_repeat": 3}):
        env = GymnasiumEnv("Zoo/Pilot-v0", 1, wrappers=[wrapper])
        env.reset(0)
        env.step(action)
        seen = env.step(other if "sticky_actions" in wrapper else action).final_observations
        assert seen[0, :3].tolist() == [1.0, 4.0, 1.0]
    for wrapper in ("clip_actions", "rescale_actions", "action_noise"):
        with pytest.raises(ConfigError, match=f"environment.wrappers.{wrapper} needs actions that are a Box, not Dict"):
            GymnasiumEnv("Zoo/Pilot-v0", 1, wrappers=[{wrapper: 1.0}])


def test_episode_statistics_arrive_as_infos():
    keys = ["episode.return", "episode.length", "episode.max_reward"]
    env = GymnasiumEnv(RAMP, 2, env_kwargs={"length": 3}, wrappers=["episode_statistics"], info_keys=keys)
    env.reset(0)
    steps = [env.step(torch.zeros(2, 2)) for _ in range(4)]
    assert [step.infos["episode.max_reward"].tolist() for step in steps] == [[0, 0], [0, 0], [3, 3], [0, 0]]
    assert [step.infos["episode.return"].tolist() for step in steps] == [[0, 0], [0, 0], [1 + 2 + 3] * 2, [0, 0]]
    assert [step.infos["episode.length"].tolist() for step in steps] == [[0, 0], [0, 0], [3, 3], [0, 0]]
    falling = [{"clip_reward": [-9, -2]}, "episode_statistics"]  # a reward below 0 may be the highest, too
    env = GymnasiumEnv(RAMP, 1, env_kwargs={"length": 3}, wrappers=falling, info_keys=keys)
    env.reset(0)
    assert [env.step(torch.zeros(1, 2)).infos["episode.max_reward"].item() for _ in range(3)] == [0, 0, -2]


def test_noise_has_the_deviation_that_was_asked_for():
    env = wrap(Ramp(length=10**6), {"observation_noise": [0.5, 0.0]}, {"reward_noise": 2.0})
    steps = roll(env, [NOTHING] * 3000)
    obs = np.array([step[0] for step in steps]) - np.outer(np.arange(1, 3001), [1, 10])
    rewards = np.array([step[1] for step in steps]) - np.arange(1, 3001)
    assert obs[:, 0].std() == pytest.approx(0.5, rel=0.06)
    assert not obs[:, 1].any()
    assert rewards.std() == pytest.approx(2.0, rel=0.06)
    assert steps[0][0].dtype == np.float32
    assert not env.observation_space.is_bounded()


def test_noisy_actions_stay_within_bounds():
    ramp = Ramp(length=10**6)
    env = wrap(ramp, {"action_noise": {"std": [0.1, 100.0]}})
    roll(env, [np.array([0, 5], np.float32)] * 2000)
    taken = np.array(ramp.taken)
    assert taken[:, 0].std() == pytest.approx(0.1, rel=0.07)
    assert (taken[:, 1].min(), taken[:, 1].max()) == (0, 10)


def test_delayed_observations():
    env = wrap(Ramp(), {"observation_delay": 2})
    assert env.reset()[0].tolist() == [0, 0]
    assert [step[0][0] for step in roll(env, [NOTHING] * 5)] == [0, 0, 1, 2, 3]
    assert env.reset()[0].tolist() == [0, 0]
    assert wrap(Ramp(), {"observation_delay": 0}).step(NOTHING)[0].tolist() == [1, 10]
    assert wrap(Film(kind="dict"), {"observation_delay": 1}).step(0)[0]["place"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("bounds", "expected"), [("sign", [1, 1, 1, 1]), (2, [1, 2, 2, 2]), ([1.5, 3], [1.5, 2, 3, 3])]
)
def test_clipped_rewards(bounds, expected):
    assert [step[1] for step in roll(wrap(Ramp(), {"clip_reward": bounds}), [NOTHING] * 4)] == expected


def test_losing_a_life_ends_the_episode_but_not_the_game():
    pytest.importorskip("ale_py")
    env = gymnasium.make("ALE/Breakout-v5", frameskip=4, repeat_action_probability=0.0, obs_type="ram")
    env = wrap(env, "life_loss")
    games, lives = [[]], 5
    for _ in range(1000):
        _, _, terminated, truncated, info = env.step(1)  # fire, and never move
        if not terminated and not truncated:
            continue
        games[-1].append((lives, info["lives"]))
        frame = info["frame_number"]
        _, info = env.reset()
        is_new_game = info["episode_frame_number"] < 10
        assert is_new_game == (games[-1][-1][1] == 0)
        assert is_new_game or info["frame_number"] == frame + 4  # one step of doing nothing
        lives = info["lives"]
        if is_new_game:
            games.append([])
        if len(games) > 2:
            break
    assert games[:2] == [[(5, 4), (4, 3), (3, 2), (2, 1), (1, 0)]] * 2


def video_run(tmp_path, steps, **kwargs):
    env = GymnasiumEnv(
        FILM,
        2,
        env_kwargs={"length": 4, "render_mode": "rgb_array"},
        wrappers=[{"video": {"folder": str(tmp_path / "films"), **kwargs}}],
    )
    env.reset(0)
    for _ in range(steps):
        env.step(torch.zeros(2, dtype=torch.int64))
    return env


def films(tmp_path):
    return sorted(path.name for path in (tmp_path / "films").iterdir())


def shown_films(tmp_path):
    return [name for name in films(tmp_path) if not name.startswith(".")]


def pictures(path):
    return read_film(path)[0][:, 5, 5, 1].tolist()


def test_videos_of_the_first_copy(tmp_path):
    env = video_run(tmp_path, 4 * 4 + 2, every=2)
    assert [name for name in films(tmp_path) if not name.startswith(".")] == [
        "episode-000000.mp4",
        "episode-000002.mp4",
    ]
    shown = pictures(tmp_path / "films" / "episode-000002.mp4")
    assert shown == pytest.approx([0, 30, 60, 90, 120], abs=4)
    env.close()  # in the middle of the fifth episode
    assert films(tmp_path) == [f"episode-00000{index}.mp4" for index in (0, 2, 4)]
    assert len(pictures(tmp_path / "films" / "episode-000004.mp4")) == 3


def test_a_video_goes_on_after_a_restore_and_overwrites_nothing(tmp_path):
    env = video_run(tmp_path, 2)
    state = env.get_state()
    env.close()
    again = video_run(tmp_path, 2)
    again.set_state(state)  # by replay, which shows the episode from its beginning
    for _ in range(2):
        again.step(torch.zeros(2, dtype=torch.int64))
    again.close()
    assert films(tmp_path) == ["episode-000000-2.mp4", "episode-000000.mp4", "episode-000001.mp4"]
    assert len(pictures(tmp_path / "films" / "episode-000000-2.mp4")) == 3
    assert len(pictures(tmp_path / "films" / "episode-000001.mp4")) == 5


def test_a_video_that_begins_in_the_middle_says_so(tmp_path):
    def make():
        kwargs = {"render_mode": "rgb_array", "max_episode_steps": 4}
        return GymnasiumEnv("Pendulum-v1", 1, env_kwargs=kwargs, wrappers=[{"video": str(tmp_path / "films")}])

    env, other = make(), make()
    env.reset(0)
    for _ in range(5):
        env.step(torch.zeros(1, 1))
    other.set_state(env.get_state())
    env.close()
    for _ in range(3):
        other.step(torch.zeros(1, 1))
    other.close()
    assert films(tmp_path) == ["episode-000000.mp4", "episode-000001-from-step-1.mp4", "episode-000001.mp4"]
    assert len(pictures(tmp_path / "films" / "episode-000001-from-step-1.mp4")) == 1 + 3


KILLED = """
import sys, time
from rl_lab.environments.wrappers.wrapping import build_wrappers
from tests.environments.ramps import Film
(video,) = build_wrappers([{"video": sys.argv[1]}])
env = video(Film(length=4, render_mode="rgb_array"))
env.assign_copy(0)
for steps in (4, 2):
    env.reset()
    for _ in range(steps):
        env.step(0)
print("ready", flush=True)
time.sleep(60)
"""


def test_finished_videos_survive_a_kill(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "films")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(0.2)
    assert len(pictures(tmp_path / "films" / "episode-000000.mp4")) == 5
    assert shown_films(tmp_path) == ["episode-000000.mp4"]


def test_recording_changes_no_bit(tmp_path):
    kwargs = {"name": "Pendulum-v1", "num_envs": 2, "env_kwargs": {"render_mode": "rgb_array", "max_episode_steps": 5}}
    env = GymnasiumEnv(**kwargs, wrappers=[{"video": str(tmp_path / "films")}])
    other = GymnasiumEnv(**kwargs)
    assert_equal(env.reset(3), other.reset(3))
    for action in random_actions(env.spec, 2, 12):
        assert_equal(env.step(action), other.step(action))
    env.close()
    assert len(films(tmp_path)) == 3


def test_entries_may_be_names_mappings_or_callables():
    entries = OmegaConf.create([{"action_repeat": 2}, "rescale_actions", {"clip_reward": {"bounds": [0, 1]}}])
    built = pickle.loads(pickle.dumps(build_wrappers([*entries, gymnasium.wrappers.FlattenObservation])))
    names = [type(wrapper(Ramp())).__name__ for wrapper in built]
    assert names == ["ActionRepeat", "RescaleActions", "ClipReward", "FlattenObservation"]


def test_worker_processes_build_wrappers_too():
    entries = [{"action_repeat": 2}, {"frame_stack": 2}, {"observation_noise": 0.1}]
    env = GymnasiumEnv(RAMP, 2, wrappers=entries, backend="process", num_workers=1)
    other = GymnasiumEnv(RAMP, 2, wrappers=entries)
    assert_equal(env.reset(0), other.reset(0))
    for action in random_actions(env.spec, 2, 10):
        assert_equal(env.step(action), other.step(action))
    env.close()


def test_wrappers_bring_no_torch():
    setup = "import sys, rl_lab.environments.wrappers.wrapping as w"
    code = f"{setup}; w.build_wrappers([{{'time_limit': 3}}]); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "rl_lab.environments.wrappers.video" in loaded
    assert not {"torch", "cv2", "imageio", "ale_py", "mujoco", "minigrid"} & set(loaded)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["resise"],
            r"unknown wrapper in environment.wrappers 'resise'; did you mean 'resize'\? \(choices: action_noise, ",
        ),
        ([{"resize": {"sise": 3}}], r"unknown argument of environment.wrappers.resize 'sise'.*\(choices: keys, size\)"),
        ([{"time_limit": None}], r"environment.wrappers.time_limit needs max_episode_steps"),
        ([{"resize": 3, "grayscale": None}], r"an entry of environment.wrappers is a name, a mapping of one name"),
        ([3], r"an entry of environment.wrappers is a name, .* not 3"),
        ({"resize": 3}, r"environment.wrappers is a list, innermost first, not \{'resize': 3\}"),
        ("resize", r"environment.wrappers is a list"),
        ([{"resize": 84}], r"environment.wrappers.resize needs a picture, .* or \[H, W\], not Box\(2\) of float32"),
        (["grayscale"], r"environment.wrappers.grayscale needs a picture, uint8 \[H, W, 3\], not Box\(2\)"),
        ([{"time_limit": 0}], r"environment.wrappers.time_limit must be a whole number of 1 or more, not 0"),
        ([{"action_repeat": 1.5}], r"environment.wrappers.action_repeat must be a whole number of 1 or more, not 1.5"),
        ([{"frame_stack": "four"}], r"environment.wrappers.frame_stack must be a whole number .* not 'four'"),
        ([{"sticky_actions": 1.5}], r"environment.wrappers.sticky_actions must be a number from 0 to 1, not 1.5"),
        ([{"observation_noise": -1}], r"environment.wrappers.observation_noise must be a number of 0 or more"),
        ([{"observation_noise": [1, 2, 3]}], r"environment.wrappers.observation_noise has 3 values of std for Box"),
        ([{"clip_reward": "signs"}], r"environment.wrappers.clip_reward must be 'sign', a number or \[low, high\]"),
        (
            [{"clip_actions": [20, 30]}],
            r"environment.wrappers.clip_actions \[20, 30\] leaves nothing of \[-1.0, 10.0\]",
        ),
        ([{"rescale_actions": [1, 0]}], r"environment.wrappers.rescale_actions must be a number or \[low, high\]"),
        (
            [{"video": "films"}],
            r"wrappers.video needs environment.env_kwargs.render_mode=rgb_array, not None",
        ),
        (["life_loss"], r"environment.wrappers.life_loss is for Atari \(ALE/...\), not for a Ramp"),
    ],
)
def test_what_is_said_of_a_wrong_entry(entries, message):
    with pytest.raises(ConfigError, match=message) as caught:
        GymnasiumEnv(RAMP, 1, wrappers=entries)
    assert "\n" not in str(caught.value)


def test_what_is_said_of_wrong_keys_and_actions():
    with pytest.raises(ConfigError, match=r"unknown key of .*resize 'pixels' \(choices: camera, place\)"):
        wrap(Film(kind="dict"), {"resize": {"size": 3, "keys": ["pixels"]}})
    with pytest.raises(ConfigError, match=r"environment.wrappers.resize needs a picture"):
        wrap(Film(kind="dict"), {"resize": {"size": 3, "keys": ["camera", "place"]}})
    with pytest.raises(ConfigError, match=r"wrappers.action_noise needs actions that are a Box, not Discrete\(3\)"):
        wrap(Film(), {"action_noise": 0.1})


@pytest.mark.parametrize(
    ("package", "entry", "extra"),
    [("cv2", {"resize": 3}, "atari"), ("imageio_ffmpeg", {"video": "films"}, "video")],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package, entry, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'rl-lab\[{extra}\]'"):
        wrap(Film(render_mode="rgb_array"), entry)


def test_every_wrapper_documents_its_arguments():
    for name, kind in WRAPPERS.items():
        arguments = [key for key in inspect.signature(kind).parameters if key != "env"]
        for argument in arguments:
            assert f"        {argument}: " in f"        {kind.__doc__}", (name, argument)
