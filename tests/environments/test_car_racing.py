"""The fast CarRacing beside gymnasium's own: the same to the bit in all but the picture, which is nearly the same."""

import math
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest

from rl_lab.core import ConfigError
from rl_lab.environments.car_racing import make_env
from rl_lab.environments.gymnasium import GymnasiumEnv

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    pygame = pytest.importorskip("pygame")
    CarRacing = pytest.importorskip("gymnasium.envs.box2d.car_racing").CarRacing

LUMA = np.array([0.299, 0.587, 0.114])


class Undrawn(CarRacing):
    """Gymnasium's environment without the drawing, which is all of its time."""

    def _render(self, mode):
        return None


def drive(env, rng):
    """Steer roughly along the track, with a shaky hand."""
    base = env.unwrapped
    hull, track = base.car.hull, np.array(base.track)[:, 2:4]
    nearest = int(((track - hull.position) ** 2).sum(axis=1).argmin())
    ahead_x, ahead_y = track[(nearest + 5) % len(track)] - hull.position
    cos, sin = math.cos(hull.angle), math.sin(hull.angle)
    turn = math.atan2(cos * ahead_x + sin * ahead_y, cos * ahead_y - sin * ahead_x)
    is_slow = hull.linearVelocity.length < 50.0
    controls = [np.clip(2.0 * turn + rng.normal(0.0, 0.2), -1.0, 1.0), 0.6 * is_slow, rng.choice([0.0, 0.0, 0.3, 1.0])]
    return np.array(controls, np.float32)


def difference(picture, other):
    return float(np.abs(picture.astype(int) - other.astype(int)).mean())


def window_picture(stock, size):
    """Return what gymnasium's window, which it keeps, looks like at another size."""
    return pygame.surfarray.array3d(pygame.transform.smoothscale(stock.unwrapped.surf, (size, size))).swapaxes(0, 1)


def move_car(env, x, y):
    car = env.unwrapped.car
    shift = (x - car.hull.position[0], y - car.hull.position[1])
    for body in (car.hull, *car.wheels):
        body.position = (body.position[0] + shift[0], body.position[1] + shift[1])


@pytest.mark.parametrize("seed", range(5))
def test_rewards_and_ends_are_those_of_gymnasium(seed):
    fast, stock = make_env("CarRacing-fast", size=64), Undrawn()
    rng = np.random.default_rng(seed)
    fast.action_space.seed(seed)
    for episode in range(4):  # only the first one is seeded: the random stream must go on alike
        reset_seed = seed if episode == 0 else None
        fast.reset(seed=reset_seed)
        stock.reset(seed=reset_seed)
        assert fast.unwrapped.track == stock.track
        for step in range(150):
            action = drive(fast, rng) if episode % 2 == 0 else fast.action_space.sample()
            outcome, expected = fast.step(action)[1:], stock.step(action)[1:]
            assert outcome == expected, (episode, step)
        assert fast.unwrapped.car.hull.position == stock.car.hull.position
        assert [wheel.omega for wheel in fast.unwrapped.car.wheels] == [wheel.omega for wheel in stock.car.wheels]
        assert fast.unwrapped.tile_visited_count == stock.tile_visited_count > 1
    assert fast.np_random.bit_generator.state == stock.np_random.bit_generator.state


def test_leaving_the_field_and_finishing_the_lap_end_an_episode_as_in_gymnasium():
    fast, stock = make_env("CarRacing-fast", size=64), Undrawn()
    action = np.array([0.0, 1.0, 0.0], np.float32)
    for env in (fast, stock):
        env.reset(seed=1)
        move_car(env, 320.0, 300.0)
    for _ in range(400):
        outcome, expected = fast.step(action)[1:], stock.step(action)[1:]
        assert outcome == expected
        if outcome[1]:
            break
    assert outcome == (-100, True, False, {"lap_finished": False})

    for env in (fast, stock):
        env.reset(seed=1)
        env.unwrapped.tile_visited_count = len(env.unwrapped.track)
    assert fast.step(action)[1:] == stock.step(action)[1:]
    assert fast.step(action)[2:] == (True, False, {"lap_finished": True})


def test_discrete_actions_are_those_of_gymnasium():
    fast, stock = make_env("CarRacing-fast", size=64, continuous=False), Undrawn(continuous=False)
    fast.reset(seed=2)
    stock.reset(seed=2)
    fast.action_space.seed(0)
    for _ in range(200):
        action = fast.action_space.sample()
        assert fast.step(action)[1:] == stock.step(action)[1:]
    with pytest.raises(gymnasium.error.InvalidAction, match="7"):
        fast.step(7)


def test_pictures_are_nearly_those_of_gymnasium():
    fast, stock = make_env("CarRacing-fast"), CarRacing()
    small = make_env("CarRacing-fast", size=64)
    gray = make_env("CarRacing-fast", grayscale=True)
    envs, rng = (fast, small, gray, stock), np.random.default_rng(0)
    for env in envs:
        obs, _ = env.reset(seed=3)
        assert obs in env.observation_space
    for step in range(80):  # 50 of them while the camera falls
        action = drive(stock, rng)
        picture, small_picture, gray_picture, expected = (env.step(action)[0] for env in envs)
        assert difference(picture, expected) < 1.0, step
        assert difference(small_picture, window_picture(stock, 64)) < 1.2, step
        assert difference(gray_picture, (expected @ LUMA)[..., None]) < 1.2, step
    assert picture.shape == (96, 96, 3)
    assert gray_picture.shape == (96, 96, 1)
    assert difference(picture[84:], expected[84:]) < 0.2  # the indicators
    assert difference(picture[66:78, 44:52], expected[66:78, 44:52]) < 6.0  # the car


def test_pictures_show_the_end_of_the_world():
    fast, stock = make_env("CarRacing-fast"), CarRacing()
    for env in (fast, stock):
        env.reset(seed=4)
        for _ in range(50):
            env.step(np.zeros(3, np.float32))
        move_car(env, -300.0, 330.0)
    picture, expected = (env.step(np.zeros(3, np.float32))[0] for env in (fast, stock))
    assert (expected[:60] == 0).all(axis=-1).mean() > 0.2
    assert difference(picture, expected) < 1.0


def test_random_colours_are_those_of_gymnasium():
    fast, stock = make_env("CarRacing-fast", domain_randomize=True), CarRacing(domain_randomize=True)
    commonest = []
    for seed, options in ((5, None), (None, None), (None, {"randomize": False})):
        fast.reset(seed=seed, options=options)
        stock.reset(seed=seed, options=options)
        for _ in range(20):
            picture, expected = (env.step(np.array([0.1, 0.5, 0.0], np.float32))[0] for env in (fast, stock))
        assert difference(picture, expected) < 1.0
        colors, counts = np.unique(picture[60:84].reshape(-1, 3), axis=0, return_counts=True)
        commonest.append(colors[counts.argmax()].tolist())
    assert commonest[0] != commonest[1] == commonest[2]


def test_a_border_without_width_is_not_drawn():
    """Between two tiles of exactly one direction gymnasium's border has no width, once in some hundred tracks."""
    from rl_lab.environments.racing.map import TrackMap

    road = ([[0.0, 0.0], [10.0, 0.0], [10.0, 9.0], [0.0, 9.0]], (100, 100, 100))
    border = ([[10.0, 0.0], [10.0, 0.0], [10.0, 9.0], [10.0, 9.0]], (255, 0, 0))
    pictures = []
    for polygons in ([road], [road, border]):
        track = TrackMap(64, is_gray=False)
        track.bake(polygons, (0, 200, 0), (0, 210, 0))
        pictures.append(track.sample(5.0, 5.0, 0.0, 6.0).view(np.uint8))
    assert np.mean(pictures[0] != pictures[1]) < 0.02  # pygame may fill the line itself


def test_visited_tiles_lose_their_tint():
    env = make_env("CarRacing-fast")
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(120):
        picture = env.step(drive(env, rng))[0]
    road = picture[:84][(np.ptp(picture[:84].astype(int), axis=-1) == 0) & (picture[:84, :, 0] > 90)][:, 0]
    rows = np.nonzero((picture[:84] == 105).all(axis=-1))[0]  # the third shade, of 107 in gymnasium's window
    assert {100, 102, 105} <= set(road.tolist())
    assert rows.max() < 78  # not behind the car, whose rear is there


def test_with_rendering_everything_else_stays_the_same():
    plain, rendered = make_env("CarRacing-fast", size=64), make_env("CarRacing-fast", size=64, render_mode="rgb_array")
    rng = np.random.default_rng(0)
    assert np.array_equal(plain.reset(seed=6)[0], rendered.reset(seed=6)[0])
    for _ in range(120):
        action = drive(plain, rng)
        (obs, *outcome), (other, *expected) = plain.step(action), rendered.step(action)
        assert outcome == expected
        assert np.array_equal(obs, other)
    assert rendered.render().shape == (400, 600, 3)


def test_observations_are_kept_and_the_limit_truncates():
    env = make_env("CarRacing-fast", size=64, max_episode_steps=3)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    flags = [env.step(np.array([0.0, 1.0, 0.0], np.float32))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    assert np.array_equal(first, kept)
    assert make_env("CarRacing-fast").spec is None
    assert make_env("CarRacing-fast").get_wrapper_attr("_max_episode_steps") == 1000


def test_a_running_episode_is_restored_to_the_bit():
    first, second = (GymnasiumEnv("CarRacing-fast", 2, env_kwargs={"size": 64}) for _ in range(2))
    first.reset(seed=1)
    second.reset(seed=99)
    assert first.spec.observation.shape == (3, 64, 64)
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (60, 2, 3)).astype(np.float32)
    torch = sys.modules["torch"]
    for row in actions[:30]:
        first.step(torch.from_numpy(row))
    second.set_state(first.get_state())
    for row in actions[30:]:
        one, other = first.step(torch.from_numpy(row)), second.step(torch.from_numpy(row))
        assert torch.equal(one.observations, other.observations)
        assert torch.equal(one.rewards, other.rewards)


@pytest.mark.parametrize("size", [0, 50, 512, "large"])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(ConfigError, match="size.*multiple of 8 from 32 to 256"):
        make_env("CarRacing-fast", size=size)


def test_an_unknown_name_and_a_missing_package_are_told(monkeypatch):
    with pytest.raises(ConfigError, match="CarRacing-fast"):
        make_env("CarRacing-faster")
    monkeypatch.setitem(sys.modules, "gymnasium.envs.box2d.car_racing", None)
    with pytest.raises(ConfigError, match=r"rl-lab\[box2d\]"):
        make_env("CarRacing-fast")


def test_it_brings_no_torch_into_a_worker():
    script = "import sys; from rl_lab.environments.car_racing import make_env; make_env('CarRacing-fast').reset(seed=0)"
    subprocess.run([sys.executable, "-c", f"{script}; assert 'torch' not in sys.modules"], check=True, timeout=60)
