import re
import sys

import gymnasium
import minigrid  # noqa: F401  (registers its ids)
import numpy as np
import pytest
from minigrid.wrappers import OneHotPartialObsWrapper, RGBImgObsWrapper, RGBImgPartialObsWrapper

from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.minigrid import MAX_WORDS, UNKNOWN, VOCABULARY, WORD_IDS, make_env, mission_ids
from tests.environments.rollouts import assert_equal, random_actions

DOORKEY = "MiniGrid-DoorKey-5x5-v0"
IDS = sorted(name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-")) and "WFC" not in name)


def words_of(text):
    return re.findall("[a-z0-9]+", text.lower())


def test_the_vocabulary_is_that_of_the_package(capsys):
    seen = set()
    for name in IDS:
        env = make_env(name)
        space = env.unwrapped.observation_space["mission"]
        for choices in space.ordered_placeholders or ():
            seen.update(word for choice in choices for word in words_of(choice))
        for seed in range(3):
            obs, _ = env.reset(seed=seed)
            seen.update(words_of(env.unwrapped.mission))
            assert UNKNOWN not in obs["mission"]
            assert [WORD_IDS[word] for word in words_of(env.unwrapped.mission)] == list(filter(None, obs["mission"]))
    assert len(IDS) > 150
    assert set(VOCABULARY) - seen <= {"left", "right", "behind", "front"}  # rare; where an object may be
    assert seen <= set(VOCABULARY)
    assert capsys.readouterr().out == ""  # BabyAI prints the levels it rejects


def test_mission_ids_by_hand():
    assert VOCABULARY[:3] == ("a", "after", "and")  # so they are 2, 3 and 4
    assert mission_ids("A, after; and", 5).tolist() == [2, 3, 4, 0, 0]
    assert mission_ids("and bananas", 3).tolist() == [4, 1, 0]
    with pytest.raises(ValueError, match="a mission of 3 words; environment.env_kwargs.max_words is 2"):
        mission_ids("a a a", 2)


def test_the_longest_mission_fits(monkeypatch):
    from minigrid.envs.babyai.core.verifier import AfterInstr, AndInstr, ObjDesc, PutNextInstr

    env = make_env("BabyAI-BossLevel-v0")
    env.reset(seed=0)

    monkeypatch.setattr(ObjDesc, "find_matching_objs", lambda self, _: self.obj_set.append(self))

    def put():
        return PutNextInstr(ObjDesc("ball", "red", "front"), ObjDesc("box", "blue", "front"))

    longest = AfterInstr(AndInstr(put(), put()), AndInstr(put(), put()))
    assert len(words_of(longest.surface(env.unwrapped))) == MAX_WORDS["BabyAI-"]


def test_symbolic_and_one_hot():
    env, codes = make_env(DOORKEY), make_env(DOORKEY, observations="one_hot")
    raw = gymnasium.make(DOORKEY)
    reference = OneHotPartialObsWrapper(gymnasium.make(DOORKEY))
    (obs, _), (coded, _), (plain, _), (expected, _) = (each.reset(seed=3) for each in (env, codes, raw, reference))
    for action in (2, 1, 2, 3, 0, 5, 2, 2):
        assert obs["image"].dtype == np.float32
        assert np.array_equal(obs["image"], plain["image"].transpose(2, 0, 1))
        assert np.array_equal(coded["image"], expected["image"].transpose(2, 0, 1))
        assert obs["direction"] == plain["direction"]
        obs, coded, plain, expected = (each.step(action)[0] for each in (env, codes, raw, reference))


@pytest.mark.parametrize(
    ("observations", "wrapper"), [("rgb", RGBImgPartialObsWrapper), ("rgb_full", RGBImgObsWrapper)]
)
def test_pictures_are_the_packages_own(observations, wrapper):
    env, reference = make_env(DOORKEY, observations=observations), wrapper(gymnasium.make(DOORKEY), tile_size=8)
    obs, expected = env.reset(seed=3)[0], reference.reset(seed=3)[0]
    for action in (2, 1, 2):
        assert np.array_equal(obs["image"], expected["image"])
        obs, expected = env.step(action)[0], reference.step(action)[0]


def test_what_is_observed_is_chosen():
    env = GymnasiumEnv(DOORKEY, 1, env_kwargs={"observations": "one_hot"})
    assert {name: leaf.shape for name, leaf in env.spec.observation.items()} == {
        "image": (20, 7, 7),
        "direction": (4,),
        "mission": (20,),
    }
    assert env.spec.max_episode_steps == 250
    alone = GymnasiumEnv(DOORKEY, 1, env_kwargs={"direction": False, "mission": False, "flat": True})
    assert alone.spec.observation.shape == (147,)
    pixels = GymnasiumEnv(DOORKEY, 1, env_kwargs={"observations": "rgb_full", "direction": False, "tile_size": 4})
    assert {name: leaf.shape for name, leaf in pixels.spec.observation.items()} == {
        "image": (3, 20, 20),
        "mission": (20,),
    }
    assert GymnasiumEnv("BabyAI-GoToLocal-v0", 1).spec.max_episode_steps is None  # drawn for each episode


@pytest.mark.parametrize("name", [DOORKEY, "MiniGrid-Dynamic-Obstacles-6x6-v0", "BabyAI-GoToLocal-v0"])
def test_state_continues_to_the_bit_across_resets(name):
    env, other = (GymnasiumEnv(name, 2, env_kwargs={"observations": "one_hot"}) for _ in range(2))
    assert env.spec.exact_resume
    env.reset(1)
    other.reset(2)
    num_ends = 0
    for index, action in enumerate(random_actions(env.spec, 2, 300)):
        if index in (0, 60, 150):
            other.set_state(env.get_state())
        step = env.step(action)
        num_ends += int((step.terminated | step.truncated).sum())
        assert_equal(step, other.step(action))
    assert num_ends > 0


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        ("MiniGrid-DorKey-5x5-v0", {}, f"unknown environment.name 'MiniGrid-DorKey-5x5-v0'; did you mean '{DOORKEY}'?"),
        (
            DOORKEY,
            {"observations": "text"},
            "environment.env_kwargs.observations is 'text' (choices: symbolic, one_hot, ",
        ),
        (DOORKEY, {"max_words": 0}, "environment.env_kwargs.max_words must be 1 or more, got 0"),
        (DOORKEY, {"colour": 1}, f"environment.env_kwargs does not fit '{DOORKEY}': "),
    ],
)
def test_bad_input_is_one_line(name, kwargs, text):
    with pytest.raises(ConfigError) as error:
        GymnasiumEnv(name, 1, env_kwargs=kwargs)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ConfigError, match=r"needs a package that is not installed: pip install 'rl-lab\[minigrid\]'"):
        make_env(DOORKEY)
