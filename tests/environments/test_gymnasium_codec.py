"""Nested observations become a flat dict of tensors; whatever does not fit is one line."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_lab.core import Box, EnvironmentFault
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.codec import UnsupportedSpace, observation_codec
from tests.environments import zoo

torch.set_num_threads(1)


def test_a_tuple_has_its_indices_as_keys():
    env = GymnasiumEnv("tests.environments.zoo:Zoo/Nest-v0", 1, env_kwargs={"kind": "flat"})
    assert env.spec.observation == {"0": Box((2,)), "1": Box((3,))}
    obs = env.reset(0)
    vector, place = zoo.Nest("flat").reset(seed=int(np.random.SeedSequence(0).generate_state(1)[0]) >> 1)[0]
    assert obs["0"][0].tolist() == vector.tolist()
    assert obs["1"][0].tolist() == [float(place == value) for value in range(3)]


def test_nested_spaces_have_dotted_keys():
    env = GymnasiumEnv("Zoo/Nest-v0", 2)
    assert env.spec.observation == {
        "bits": Box((2,)),
        "camera.pose.0": Box((2,)),
        "camera.pose.1": Box((3,)),
        "camera.rgb": Box((3, 4, 5), torch.uint8),
    }
    assert env.spec.exact_resume
    obs = env.reset(3)
    expected = zoo.Nest().reset(seed=int(np.random.SeedSequence(3).generate_state(2)[1]) >> 1)[0]
    assert np.array_equal(obs["camera.rgb"][1].numpy(), np.moveaxis(expected["camera"]["rgb"], -1, 0))
    assert obs["camera.pose.0"][1].tolist() == expected["camera"]["pose"][0].tolist()
    assert obs["bits"][1].tolist() == expected["bits"].tolist()


@pytest.mark.parametrize(
    ("kind", "fault", "message"),
    [
        ("deep", "keys", r"returned keys \['pose'\] as observation instead of keys \['pose', 'rgb'\]"),
        ("flat", "parts", "returned 1 parts as observation instead of 2 parts"),
    ],
)
def test_other_parts_than_the_space_has_are_a_fault(kind, fault, message):
    env = GymnasiumEnv("Zoo/Nest-v0", 1, env_kwargs={"kind": kind, "fault": fault}, exact_resume=True)
    env.reset(0)
    with pytest.raises(EnvironmentFault, match=message):
        env.step(torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84, 4), (4, 84, 84)),
        ((64, 64, 12), (12, 64, 64)),
        ((3, 64, 64), (3, 64, 64)),
        ((7, 7, 3), (3, 7, 7)),
        ((84, 84), (1, 84, 84)),
        ((4, 84, 84, 3), (4, 84, 84, 3)),
    ],
)
def test_images_have_their_channels_first(shape, expected):
    codec = observation_codec(spaces.Box(0, 255, shape, np.uint8))
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    arrays = codec.empty(1)
    codec.write(codec.target(arrays), 0, image)
    assert arrays[""].shape == (1, *expected)
    channels_last = image.ndim == 3 and expected != shape
    assert np.array_equal(arrays[""][0].reshape(-1), (np.moveaxis(image, 2, 0) if channels_last else image).reshape(-1))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({}), "holds nothing"),
        (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "there twice, 'a.b'"),
        (spaces.Dict({"words": spaces.Sequence(spaces.Discrete(2))}), "Sequence.*; an observation is a Box"),
        (spaces.Dict({"action_mask": spaces.Discrete(2)}), "as action_mask, which must be"),
    ],
)
def test_what_has_no_tensor_says_so(space, message):
    with pytest.raises(UnsupportedSpace, match=message):
        observation_codec(space)
