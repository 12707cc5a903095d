"""Where robots start on a terrain, and when they move to another level."""

import torch

from rl_lab.robots.managers.curriculum import TerrainCurriculum
from tests.robots.tasks import task

torch.set_num_threads(1)
SMALL = {"num_levels": 4, "num_columns": 3, "tile_size": 4.0, "first_levels": 2, "border": 2.0}


def curriculum(count=600, **changes):
    return TerrainCurriculum({**SMALL, **changes}, count, torch.device("cpu"))


def test_first_levels_are_easy_and_columns_are_shared_out():
    made, generator = curriculum(), torch.Generator().manual_seed(0)
    origins = made.begin(generator)
    assert set(made.levels.tolist()) == {0, 1}
    assert torch.bincount(made._columns).tolist() == [200, 200, 200]
    for world in (0, 250, 599):
        wanted = made.terrain.origins[made.levels[world], made._columns[world]]
        assert torch.equal(origins[world], wanted)


def test_who_walks_far_goes_up_and_who_stands_goes_down():
    made, generator = curriculum(count=6), torch.Generator().manual_seed(0)
    made.levels = torch.tensor([1, 1, 1, 0, 3, 1])
    walked = torch.tensor([2.5, 0.4, 1.5, 0.0, 3.0, 2.5])  # m; half a tile is 2
    wanted = torch.tensor([4.0, 4.0, 2.0, 4.0, 4.0, 4.0])
    ended = torch.tensor([True, True, True, True, True, False])
    made.end_episodes(walked, wanted, ended, generator)
    levels = made.levels.tolist()
    assert levels[:4] == [2, 0, 1, 0]
    assert 0 <= levels[4] < 4  # the last level is done: anywhere
    assert levels[5] == 1  # its episode goes on


def test_a_command_that_nobody_followed_moves_nobody():
    """Where time and command run out at once, the command drawn last is that of no step."""
    ahead = {"vx": 1.0, "vy": 0.0, "yaw": 0.0, "standing": 0.0, "heading": 0.0, "resample_s": 0.2}
    env = task("legged_quadruped_rough", num_envs=6, terrain=SMALL, commands=ahead, episode_s=0.2)
    for speed, level in ((0.0, 1), (1.0, 0)):  # who stands when told to stays, who should have walked goes down
        env.reset(0)
        env._terrain.levels = torch.ones(6, dtype=torch.int64)
        env.commands.value = torch.tensor([[speed, 0.0, 0.0]]).repeat(6, 1)
        ends = [env.step(torch.zeros(6, 12)).truncated for _ in range(10)][-1]
        assert ends.all()
        assert env._terrain.levels.tolist() == [level] * 6


def test_nobody_is_moved_by_the_first_reset():
    """Distances from the world's origin would promote everyone at once."""
    env = task("legged_quadruped_rough", num_envs=12, terrain=SMALL)
    env.reset(0)
    assert env._terrain.levels.max() <= 1
    walked = (env._read().base_pos - env.world.origins)[:, :2].norm(dim=-1)
    assert float(walked.max()) < 0.1


def test_robots_start_on_their_tiles_and_see_them():
    env = task("legged_quadruped_rough", num_envs=12, terrain=SMALL, observations={"actor": {"noise": False}})
    env.reset(0)
    for _ in range(30):
        step = env.step(torch.zeros(12, 12))
    state = env._read()
    assert float((step.terminated).float().mean()) < 0.3
    assert state.heights.shape == (12, 187)
    height = state.base_pos[:, 2] - state.ground
    assert float((height - 0.27).abs().median()) < 0.05
    x, y = state.base_pos[:, 0], state.base_pos[:, 1]
    torch.testing.assert_close(state.ground, env._terrain.terrain.height(x, y))
    middle = state.heights[:, 93]  # of 17 x 11 points
    torch.testing.assert_close(middle, state.ground, atol=1e-4, rtol=0.0)


def test_the_scan_turns_with_the_robot():
    env = task("legged_quadruped_rough", num_envs=2, terrain={**SMALL, "tiles": {"slope_up": 1.0}})
    env.reset(0)
    state, scan = env._read(), env._terrain.scan
    from rl_lab.robots.mdp.rotations import yaw_of

    yaw = float(yaw_of(state.base_quat[0]))
    turn = torch.tensor([[torch.cos(torch.tensor(yaw)), -torch.sin(torch.tensor(yaw))],
                         [torch.sin(torch.tensor(yaw)), torch.cos(torch.tensor(yaw))]])  # fmt: skip
    points = state.base_pos[0, :2] + scan @ turn.T
    wanted = env._terrain.terrain.height(points[:, 0], points[:, 1])
    torch.testing.assert_close(state.heights[0], wanted, atol=1e-4, rtol=0.0)


def test_leaving_the_ground_cuts_the_episode():
    made = curriculum(count=2)
    x, _ = made.terrain.half_size
    outside = made.is_outside(torch.tensor([[0.0, 0.0, 0.3], [x - 0.5, 0.0, 0.3]]))
    assert outside.tolist() == [False, True]


def test_levels_are_saved():
    made, other = curriculum(count=6), curriculum(count=6)
    made.begin(torch.Generator().manual_seed(3))
    other.set_state(made.get_state())
    assert torch.equal(made.levels, other.levels)
    assert torch.equal(made.origins(), other.origins())


def test_a_single_robot_sees_all_kinds_of_ground():
    made, seen = curriculum(count=1), set()
    for seed in range(20):
        made.begin(torch.Generator().manual_seed(seed))
        seen.add(int(made._columns))
        again = curriculum(count=1)
        again.set_state(made.get_state())
        assert torch.equal(made.origins(), again.origins())
    assert seen == {0, 1, 2}
    early = {"levels": made.get_state()["levels"]}
    again = curriculum(count=1)
    again.set_state(early)
    assert int(again._columns) == 0
