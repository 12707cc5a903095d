"""Where the soles of feet are, whatever their shape."""

from types import SimpleNamespace

import mujoco
import pytest

from rl_lab.core import ConfigError
from rl_lab.robots.mdp.reader import sole_heights
from rl_lab.robots.models.layout import layout_of
from rl_lab.robots.models.robot import Joint, Robot
from rl_lab.robots.models.scene import compile_scene

SHAPES = {
    "sphere": 'type="sphere" size="0.05"',
    "capsule": 'type="capsule" size="0.03 0.1"',
    "cylinder": 'type="cylinder" size="0.04 0.1"',
    "ellipsoid": 'type="ellipsoid" size="0.02 0.05 0.1"',
    "box": 'type="box" size="0.02 0.05 0.1"',
    "mesh": 'type="mesh" mesh="wedge"',
}
WEDGE = "0.1 0.02 -0.03  0.05 -0.03 -0.02  -0.05 0.03 -0.02  -0.05 -0.03 -0.02  0 0 0.06"


def robot(feet):
    legs = "".join(
        f'<body name="{name}" pos="{i} 0 0.4"><joint name="{name}" axis="0 1 0"/><site name="{name}"/>{geom}</body>'
        for i, (name, geom) in enumerate(feet.items())
    )
    text = f"""<mujoco><asset><mesh name="wedge" vertex="{WEDGE}"/></asset><worldbody><body name="base">
<freejoint/><geom size="0.1"/>{legs}</body></worldbody></mujoco>"""
    joints = tuple(Joint(name, kp=1.0, effort=1.0) for name in feet)
    return Robot("r", text, joints, "base", feet=tuple(feet), base_height=0.5)


def soles(made):
    model = compile_scene(made)
    return model, sole_heights(SimpleNamespace(model=model, layout=layout_of(model, made), robot=made))


def test_a_sole_is_as_low_as_the_shape_of_its_foot():
    turned = 'pos="0.02 0.03 0.1" euler="20 35 50" mass="1"'
    model, heights = soles(robot({name: f"<geom {shape} {turned}/>" for name, shape in SHAPES.items()}))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    for name, height in zip(SHAPES, heights, strict=True):
        (foot,) = (i for i in range(model.ngeom) if model.geom_bodyid[i] == model.body(name).id)
        above = mujoco.mj_geomDistance(model, data, model.geom("floor").id, foot, 5.0, None)
        assert height == pytest.approx(data.site(name).xpos[2] - above, abs=1e-5), name


def test_a_foot_that_touches_nothing_is_refused():
    with pytest.raises(ConfigError, match="foot 'toe' of robot 'r': its body has no geom that touches anything"):
        soles(robot({"toe": '<geom size="0.1" contype="0" conaffinity="0"/>'}))
