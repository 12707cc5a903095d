"""Two worlds, one the mirror image of the other, stay so: what is seen of one is the mirror image of the other.

The image is made by hand, of positions, velocities, targets and draws, and physics does the rest: contacts, forces,
torques and flights of the feet are its own.
"""

import numpy as np
import pytest
import torch

from rl_lab.components.symmetry import Symmetry, reflection
from rl_lab.config.trees import CONFIGS
from rl_lab.core import ConfigError, leaves_of
from rl_lab.robots import legged_env
from rl_lab.robots.managers import mirrors
from rl_lab.robots.managers.curriculum import TerrainCurriculum
from rl_lab.robots.managers.terms import functions_of
from rl_lab.robots.mdp import observations
from tests.robots.tasks import task
from tests.workflows.parts import make_ppo

torch.set_num_threads(1)
Y = torch.tensor([1.0, -1.0, 1.0])
EVENTS = (
    "friction",
    "base_com",
    "motor_offset",
    "motor_strength",
    "gains",
    "joint_friction",
    "joint_damping",
    "armature",
)
QUADRUPED_GAIT = {
    "legs": [[f"{leg}_thigh_joint", f"{leg}_calf_joint"] for leg in ("FL", "FR", "RL", "RR")],
    "amplitudes": [0.3, -0.5],
}
GAITS = {"legged_quadruped": QUADRUPED_GAIT, "legged_pm01": {}}
KNEES = {"legged_quadruped": "*_calf_joint", "legged_pm01": ["*_knee", "*_ankle_roll"]}


def every_term(knees):
    """Return an entry of every function that can be observed, and some of them with options."""
    names = [name for name in functions_of([observations]) if name != "randomized"]
    drawn = {f"drawn_{event}": {"function": "randomized", "params": {"event": event}} for event in EVENTS}
    more = {
        "knees": {"function": "joint_pos", "params": {"joints": knees}, "scale": 0.5, "clip": 1.0},
        "late": {"function": "joint_vel", "delay": 1.5, "history": 3, "clip": [-2, 2]},
    }
    return {name: {} for name in names} | drawn | more


class ScannedPlane(TerrainCurriculum):
    """A plane to stand on, since triangles of a height field are no mirror images, and hills to look at."""

    def __init__(self, config, num_envs, device):
        super().__init__(None, num_envs, device)
        self.height = hills
        self.scan = torch.cartesian_prod(torch.tensor([-0.2, 0.0, 0.2]), torch.tensor([-0.3, -0.1, 0.1, 0.3]))


def hills(x, y):
    """Return ground that is another left and right; the second world's is mirrored."""
    side = torch.tensor([1.0, -1.0]).view(-1, *[1] * (x.dim() - 1))
    return 0.05 * torch.sin(2.0 * x) + 0.1 * torch.sin(3.0 * side * y + 0.4)


def pair(name):
    """Return two worlds of a task without noise."""
    events = dict.fromkeys(("restitution", "base_mass", "link_mass", "action_lag", "reset_joints"))
    events |= {event: {"mode": "startup"} for event in EVENTS}
    events |= {"base_com": {"mode": "startup", "params": {"y": [0.01, 0.03]}}}
    groups = {"all": {"noise": False, "terms": every_term(KNEES[name])}, "past": {"noise": False, "history": 2}}
    groups["past"]["terms"] = {"base_quat": {}, "gait_phase": {"history": 3}, "foot_pos": {}}
    groups |= {"actor": None, "critic": None}
    ends = dict.fromkeys(("tilted", "fallen", "base_contact"))
    changes = {"events": events, "observations": groups, "terminations": ends}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(legged_env, "TerrainCurriculum", ScannedPlane)
        return task(name, num_envs=2, commands={"gait": GAITS[name]}, **changes)


def reflected(env, joints):
    """Return the mirror image of values of all joints."""
    source, sign = env.robot.mirrored_joints()
    return joints[..., list(source)] * torch.tensor(sign)


def make_image(env, seed):
    """Put the first world somewhere, with random draws of its own, and the second into the mirror."""
    generator = torch.Generator().manual_seed(seed)
    world, sim, layout = env.world, env.world.sim, env.world.layout
    qpos, qvel = sim.read("qpos").clone(), sim.read("qvel").clone()
    joints, dofs = list(layout.qpos), list(layout.dof)
    quat = torch.tensor([0.9, 0.1, -0.05, 0.3])
    qpos[0, :2], qpos[0, 3:7] = torch.tensor([0.3, 0.7]), quat / quat.norm()
    qpos[0, joints] += 0.1 * torch.randn(len(joints), generator=generator)
    qvel[0] = 0.3 * torch.randn(qvel.shape[1], generator=generator)
    qpos[1, :3] = qpos[0, :3] * Y
    qpos[1, 3:7] = qpos[0, 3:7] * torch.tensor([1.0, -1.0, 1.0, -1.0])
    qvel[1, :3], qvel[1, 3:6] = qvel[0, :3] * Y, -qvel[0, 3:6] * Y
    qpos[1, joints], qvel[1, dofs] = reflected(env, qpos[0, joints]), reflected(env, qvel[0, dofs])
    sim.write("qpos", qpos)
    sim.write("qvel", qvel)
    sim.forward()
    half = 0.5 * env._reader.gait.cycle_s / world.facts.dt
    env._elapsed = torch.tensor([5.0, 5.0 + half])
    command = torch.tensor([0.4, -0.3, 0.5])
    env.commands.fixed = torch.stack((command, command * torch.tensor([1.0, -1.0, -1.0])))


def mirror_draws(env):
    """Give the second world what a mirror makes of the first one's draws, and its model fields."""
    world, sim, drawn = env.world, env.world.sim, env.world.randomized
    source = list(env.robot.mirrored_joints()[0])
    push = torch.tensor([0.1, 0.4, 0.0, 0.3, -0.2, 0.5])
    world.push = torch.stack((push, push * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])))
    drawn["friction"][1] = drawn["friction"][0]
    drawn["base_com"][1] = drawn["base_com"][0] * Y
    drawn["motor_offset"][1] = reflected(env, drawn["motor_offset"][0])
    world.joint_offset = drawn["motor_offset"].clone()
    for name, parts in {
        "motor_strength": 1,
        "gains": 2,
        "joint_friction": 2,
        "joint_damping": 2,
        "armature": 2,
    }.items():
        drawn[name][1] = drawn[name][0].view(parts, -1)[:, source].flatten()
    columns = {f"dof_{field}": world.layout.dof for field in ("armature", "frictionloss", "damping")}
    columns |= dict.fromkeys(("actuator_gainprm", "actuator_biasprm"), world.layout.actuator)
    for field, places in columns.items():
        values = sim.read_model(field).clone()
        values[1, list(places)] = values[0, list(places)][source]
        sim.write_model(field, values)
    com, ground = sim.read_model("body_ipos").clone(), sim.read_model("geom_friction").clone()
    com[1, world.layout.base] = com[0, world.layout.base] * Y
    ground[1] = ground[0]
    sim.write_model("body_ipos", com)
    sim.write_model("geom_friction", ground)
    sim.recompute()


@pytest.mark.parametrize("name", GAITS)
def test_a_mirrored_world_is_observed_as_the_mirror_image(name):
    env = pair(name)
    env.reset(1)
    mirror_draws(env)
    make_image(env, seed=2)
    generator = torch.Generator().manual_seed(3)
    env.observations.restart(env._read(), torch.ones(2, dtype=torch.bool))
    touched = 0.0
    for _ in range(12):
        action = 0.5 * torch.randn(12, generator=generator)
        step = env.step(torch.stack((action, reflected(env, action))))
        touched += float(env.last_state.contact.float().mean())
        for key, seen in step.final_observations.items():
            flip = reflection(env.spec.mirror.observation[key], env.spec.observation[key], key, env.device)
            torch.testing.assert_close(seen[1], flip(seen[0]), rtol=0.0, atol=1e-4)
            assert not torch.allclose(seen[0], seen[1], atol=0.1)
    assert 0.0 < touched < 12.0  # feet stood and flew
    flip = reflection(env.spec.mirror.action, env.spec.action, "action", env.device)
    np.testing.assert_array_equal(flip(action), reflected(env, action))


def test_every_function_has_a_rule():
    assert set(mirrors.RULES) == set(functions_of([observations]).values())


@pytest.mark.parametrize("name", [path.stem for path in sorted((CONFIGS / "environment").glob("legged_*.yaml"))])
def test_every_packaged_task_has_a_mirror(name):
    small = {"num_levels": 1, "num_columns": 2} if name.endswith("rough") else None
    env = task(name, num_envs=1, **({} if small is None else {"terrain": small}))
    assert env.spec.no_mirror == ""
    leaves = leaves_of(env.spec.observation)
    assert set(env.spec.mirror.observation) == set(leaves)
    for key, leaf in leaves.items():
        reflection(env.spec.mirror.observation[key], leaf, key, env.device)  # raises unless it is its own inverse
    env.close()


OWN = {"function": "tests.robots.own_terms:front_feet"}
LINKS = {"function": "randomized", "params": {"event": "link_mass"}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"observations": {"actor": {"terms": {"front": OWN}}}},
            r"observations\.actor\.terms\.front: front_feet has no rule; its key mirror may hold pairs",
        ),
        (
            {"events": {"link_mass": {"mode": "startup"}}, "observations": {"actor": {"terms": {"masses": LINKS}}}},
            r"observations\.actor\.terms\.masses: event 'link_mass' has no rule; its key mirror may hold pairs",
        ),
        (
            {"commands": {"gait": {"offsets": [0.0, 0.25, 0.5, 0.75]}}},
            r"actor\.terms\.gait_phase: the gait's offsets \[0\.0, 0\.25, 0\.5, 0\.75\] are not the same in a mirror",
        ),
        (
            {"observations": {"actor": {"terms": {"joint_vel": {"params": {"joints": "FL_*"}}}}}},
            r"actor\.terms\.joint_vel: its joints are not those of both sides",
        ),
        (
            {"observations": {"actor": {"terms": {"command": {"clip": [-0.5, 1.0]}}}}},
            r"actor\.terms\.command: scale, noise or clip of column 1 are not those of 1 mirrored",
        ),
        (
            {"observations": {"actor": {"terms": {"command": {"mirror": [[0, 1]]}}}}},
            r"actor\.terms\.command: a mirror needs 3 pairs \[source, sign\], with sources of 0 to 2",
        ),
        (
            {"observations": {"actor": {"terms": {"command": {"mirror": [0, 1, 2]}}}}},
            r"actor\.terms\.command: mirror: must hold pairs \[source, sign\], not \[0, 1, 2\]",
        ),
        (
            {"control": {"joints": {"FL_hip_joint": {"default": 0.2}}}},
            r"default or action_scale of joint 'FL_hip_joint' is not that of 'FR_hip_joint' mirrored",
        ),
    ],
)
def test_a_task_without_a_mirror_runs_and_says_why_when_asked(changes, why):
    env = task(num_envs=1, **changes)
    assert env.spec.mirror is None
    env.reset(0)
    env.step(torch.zeros(1, 12))
    with pytest.raises(ConfigError, match=r"components\.symmetry: 'legged/quadruped' tells no mirror \(.*" + why):
        make_ppo(env.spec, extensions={"symmetry": Symmetry()})


def test_a_term_of_ones_own_brings_its_pairs():
    entry = {**OWN, "mirror": [[1, 1], [0, 1]]}
    env = task(num_envs=1, observations={"critic": None, "actor": {"history": 2, "terms": {"own": entry}}})
    (width,) = env.spec.observation.shape
    pairs = env.spec.mirror.observation[""]  # one group alone has no name
    assert len(pairs) == width
    assert [source - width for source, _ in pairs[-4:]] == [-3, -4, -1, -2]
