"""Terrain: what MuJoCo's rays hit is what the height lookup says; tiles, levels, origins, limits."""

import mujoco
import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.scene import compile_scene
from rl_lab.robots.sim import make_sim
from rl_lab.robots.terrain.boxes import cover, terraced
from rl_lab.robots.terrain.terrain import Terrain
from rl_lab.robots.terrain.tiles import TILES

EVERY = dict.fromkeys(TILES, 1.0)
SMALL = {"num_levels": 2, "num_columns": 8, "tile_size": 4.0, "border": 1.0}


@pytest.fixture(scope="module", params=["field", "boxes"])
def terrain(request):
    return Terrain(EVERY, **SMALL, shape=request.param)


def points(terrain, num, seed=0):
    generator = torch.Generator().manual_seed(seed)
    half = torch.tensor(terrain.half_size) - 0.01
    return (2 * torch.rand(num, 2, generator=generator) - 1) * half


def test_the_lookup_is_what_rays_hit(terrain):
    model = compile_scene(quadruped(), terrain)
    sim = make_sim(model, 2)
    xy = points(terrain, 4000).view(2, 2000, 2)
    origins = torch.cat([xy, torch.full((2, 2000, 1), 5.0)], -1)
    hits = 5.0 - sim.rays(origins, torch.tensor([0.0, 0, -1]).expand_as(origins))
    cell = torch.frac((xy + torch.tensor(terrain.half_size)) / terrain.resolution)
    inside = ((cell > 1e-3) & (cell < 1 - 1e-3)).all(-1)  # on the edge of a box both heights are right
    assert inside.float().mean() > 0.99
    assert (terrain.height(xy[..., 0], xy[..., 1]) - hits)[inside].abs().max() < 2e-5
    assert hits.std() > 0.1


def test_origins_lie_on_the_ground_at_the_centres_of_the_tiles(terrain):
    assert terrain.origins.shape == (2, 8, 3)
    x, y, z = terrain.origins.flatten(0, 1).T
    steps = terrain.origins[1, :, 0] - terrain.origins[0, :, 0]
    assert torch.allclose(steps, torch.full((8,), 4.0))
    assert torch.allclose(terrain.origins[:, 1:, 1] - terrain.origins[:, :-1, 1], torch.full((2, 7), 4.0))
    ground = terrain.height(x, y)
    assert torch.all(z >= ground - 1e-6)
    assert torch.all(z - ground < 0.17)  # bumps of +-8 cm
    assert torch.allclose(terrain.origins[0].mean(0)[1], torch.tensor(0.0), atol=1e-5)


def test_each_kind_is_what_it_says():
    rng = np.random.default_rng(0)
    easy, hard = ({kind: tile(d, 80, 0.1, rng) for kind, tile in TILES.items()} for d in (0.0, 1.0))
    centre = (40, 40)
    assert not hard["flat"].any()
    assert np.abs(easy["rough"]).max() <= 0.02 + 1e-9
    assert 0.06 < np.abs(hard["rough"]).max() <= 0.08 + 1e-9
    assert np.isclose(hard["slope_up"][centre], 0.4 * 2.5)
    assert np.isclose(hard["slope_down"][centre], -0.4 * 2.5)
    assert np.isclose(np.diff(hard["slope_up"][:, 40]).max(), 0.04)  # 40 % of a cell of 0.1 m
    steps = np.unique(np.diff(hard["stairs_up"][:40, 40]).round(6))
    assert steps.tolist() == [0.0, 0.23]
    assert np.isclose(easy["stairs_up"][centre], 0.05 * 8)
    assert np.array_equal(hard["stairs_down"], -hard["stairs_up"])
    assert set(np.unique(hard["stepping_stones"])) == {-0.5, 0.0}
    assert (hard["stepping_stones"] < 0).mean() > (easy["stepping_stones"] < 0).mean() > 0
    assert hard["gaps"][centre] == 0
    assert ((hard["gaps"] < 0)[40].sum(), (easy["gaps"] < 0)[40].sum()) == (16, 2)
    for kind in TILES:
        if kind != "rough":
            assert not hard[kind][:5].any(), kind  # level along the edge


def test_columns_follow_the_shares_and_the_seed_the_heights():
    kinds = Terrain({"flat": 1, "rough": 3}, num_levels=1, num_columns=8, tile_size=4.0).kinds
    assert kinds == ("flat",) * 2 + ("rough",) * 6
    first, same, other = (Terrain({"rough": 1.0}, 1, 1, tile_size=4.0, seed=seed).heights for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_a_robot_stands_on_every_tile(terrain):
    robot = quadruped()
    model = compile_scene(robot, terrain)
    sim = make_sim(model, 16)
    qpos = sim.read("qpos").clone()
    qpos[:, :3] += terrain.origins.flatten(0, 1)
    sim.write("qpos", qpos)
    for _ in range(40):
        sim.step(5)
    sim.check()
    above = sim.read("qpos")[:, 2] - terrain.height(sim.read("qpos")[:, 0], sim.read("qpos")[:, 1])
    assert torch.all((above > 0.15) & (above < 0.4)), above


def test_boxes_cover_every_cell_at_its_height_and_are_few():
    rng = np.random.default_rng(0)
    wanted = {
        "flat": 1,
        "stairs_up": 9,
        "stairs_down": 33,
        "gaps": 6,
        "slope_up": 21,
        "rough": 100,
        "stepping_stones": 100,
    }
    for kind, most in wanted.items():
        heights = terraced(kind, TILES[kind](1.0, 80, 0.1, rng), 0.1)
        blocks = cover(heights)
        assert len(blocks) <= most, kind
        tops = np.full((80, 80), -np.inf)
        for x0, x1, y0, y1, height in blocks:
            tops[x0:x1, y0:y1] = np.maximum(tops[x0:x1, y0:y1], height)
        assert np.abs(tops - heights).max() < 1e-6, kind


def test_terraces_keep_to_the_ground_they_are_made_of():
    slope = TILES["slope_up"](1.0, 80, 0.1, np.random.default_rng(0))
    steps = terraced("slope_up", slope, 0.1)
    assert np.abs(steps - slope).max() <= 0.025 + 1e-9
    assert np.abs(np.diff(steps, axis=0)).max() <= 0.05 + 1e-9
    stairs = TILES["stairs_up"](1.0, 80, 0.1, np.random.default_rng(0))
    assert terraced("stairs_up", stairs, 0.1) is stairs


def test_bad_settings_are_one_line():
    with pytest.raises(ConfigError, match="unknown kind of terrain tile 'stair'; did you mean 'stairs_up'"):
        Terrain({"stair": 1.0})
    with pytest.raises(ConfigError, match="shares must be 0 or more and not all 0"):
        Terrain({"flat": 0.0})
    with pytest.raises(ConfigError, match="terrain.num_levels: must be a whole number from 1, got 0"):
        Terrain(num_levels=0)
    with pytest.raises(ConfigError, match=r"unknown shape of terrain 'mesh' \(choices: boxes, field\)"):
        Terrain(shape="mesh")
    with pytest.raises(ConfigError, match="must be a multiple of resolution"):
        Terrain(resolution=0.3)
    with pytest.raises(ConfigError, match=r"terrain: .* height points need about [\d.]+ GB, .* lower num_levels") as e:
        Terrain(num_levels=2000, num_columns=2000, resolution=0.05)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("free", "fits"), [(81 * 81 * 64 - 1, False), (81 * 81 * 64, True), (None, True)])
def test_room_is_what_the_system_says_it_can_give(monkeypatch, free, fits):
    def no_sysconf(name):
        raise ValueError("unrecognized configuration name")  # SC_AVPHYS_PAGES where there is no Linux

    monkeypatch.setattr("os.sysconf", no_sysconf)
    monkeypatch.setattr("rl_lab.robots.terrain.terrain.free_host_memory", lambda: free)
    settings = {"tiles": {"flat": 1.0}, "num_levels": 1, "num_columns": 1, "tile_size": 8.0, "border": 0.0}
    if fits:
        assert Terrain(**settings).heights.shape == (81, 81)
    else:
        with pytest.raises(ConfigError, match="81 x 81 height points"):
            Terrain(**settings)


def test_a_flat_field_is_flat():
    terrain = Terrain({"flat": 1.0}, num_levels=1, num_columns=1, tile_size=4.0, border=0.0)
    model = compile_scene(quadruped(), terrain)
    assert model.geom("terrain").type == mujoco.mjtGeom.mjGEOM_HFIELD
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    hit = mujoco.mj_ray(model, data, [0.7, 0.3, 2.0], [0, 0, -1.0], None, 1, 1, np.zeros(1, np.int32))
    assert abs(hit - 2.0) < 1e-6
