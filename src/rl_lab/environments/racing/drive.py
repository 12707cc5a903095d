"""The car of gymnasium's CarRacing, driven with less Python: the same forces on the same bodies, to the last bit.

The wheels keep the names of `gymnasium.envs.box2d.car_dynamics`, whose constants these are. Skid marks, which only the
large picture shows, are not made.
"""

from __future__ import annotations

import math
from typing import Any

from Box2D import b2ContactListener, b2Filter  # type: ignore[import-untyped]
from gymnasium.envs.box2d.car_dynamics import ENGINE_POWER, FRICTION_LIMIT, SIZE, WHEEL_MOMENT_OF_INERTIA
from gymnasium.envs.box2d.car_racing import FPS

STEP_S = 1.0 / FPS
MAX_STEERING_SPEED, STEERING_GAIN = 3.0, 50.0  # rad/s, and per rad that is left to turn
MAX_GAS_RISE = 0.1  # per step; it falls at once
BLOCKING_BRAKE = 0.9  # from here on the wheels stand still
BRAKE_SLOWING = 15  # rad/s per step at full brake
GRASS_FRICTION = 0.6  # of that of the road
SLIP_STIFFNESS = 205000 * SIZE * SIZE  # force per difference of speed, before friction limits it
ENGINE_WORK = STEP_S * ENGINE_POWER
IDLE_OMEGA = 5.0  # rad/s, keeps a standing wheel from infinite torque


class TileListener(b2ContactListener):
    """Tells wheels which tiles they are on, and the environment which tiles are visited for the first time."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._env = env
        self._tile_reward = 1000.0 / len(env.track)

    def BeginContact(self, contact: Any) -> None:  # noqa: N802
        """Put a wheel on a tile."""
        tile, wheel = _tile_and_wheel(contact)
        wheel.tiles.add(tile)
        if not tile.road_visited:
            tile.road_visited = True
            env = self._env
            env.reward += self._tile_reward
            env.tile_visited_count += 1
            if tile.idx == 0 and env.tile_visited_count / len(env.track) > env.lap_complete_percent:
                env.new_lap = True

    def EndContact(self, contact: Any) -> None:  # noqa: N802
        """Take a wheel off a tile."""
        tile, wheel = _tile_and_wheel(contact)
        wheel.tiles.remove(tile)


def _tile_and_wheel(contact: Any) -> tuple[Any, Any]:
    first, second = contact.fixtureA.body.userData, contact.fixtureB.body.userData
    return (second, first) if "tiles" in first.__dict__ else (first, second)


class Drive:
    """Turns controls into forces on the wheels of one car, the front ones first."""

    def __init__(self, car: Any) -> None:
        self._front, self._rear = car.wheels[:2], car.wheels[2:]
        # Tiles are sensors, and nobody asks whether the hull is on one; half of a step went into the answer.
        for fixture in car.hull.fixtures:
            fixture.filterData = b2Filter(categoryBits=1, maskBits=0, groupIndex=0)
        # Bound once: looking them up is a good part of the time.
        self._wheels = [(wheel, wheel.joint, wheel.GetWorldVector, wheel.ApplyForceToCenter) for wheel in car.wheels]

    def control(self, steering: float, gas: float, brake: float) -> None:
        """Set the controls: steering to the left from -1 to 1, gas and brake from 0 to 1."""
        gas = min(max(gas, 0.0), 1.0)
        for wheel in self._front:
            wheel.steer, wheel.brake = steering, brake
        for wheel in self._rear:
            wheel.gas += min(gas - wheel.gas, MAX_GAS_RISE)
            wheel.brake = brake

    def push(self) -> None:
        """Apply to each wheel what engine, brakes and ground do to it within a step."""
        for wheel, joint, to_world, apply_force in self._wheels:
            turn = STEERING_GAIN * (wheel.steer - joint.angle)
            joint.motorSpeed = min(max(turn, -MAX_STEERING_SPEED), MAX_STEERING_SPEED)
            omega = _driven(wheel.omega, wheel.gas, wheel.brake)
            wheel.phase += omega * STEP_S

            across, velocity = to_world((1.0, 0.0)), wheel.linearVelocity
            cos, sin, x, y = across.x, across.y, velocity.x, velocity.y
            along = (omega * wheel.wheel_rad - (cos * y - sin * x)) * SLIP_STIFFNESS
            aside = -(cos * x + sin * y) * SLIP_STIFFNESS
            force = math.sqrt(along * along + aside * aside)
            limit = FRICTION_LIMIT if wheel.tiles else FRICTION_LIMIT * GRASS_FRICTION
            if force > limit:
                along, aside = along / force * limit, aside / force * limit
            wheel.omega = omega - STEP_S * along * wheel.wheel_rad / WHEEL_MOMENT_OF_INERTIA
            apply_force((aside * cos - along * sin, aside * sin + along * cos), True)


def _driven(omega: float, gas: float, brake: float) -> float:
    """Return a wheel's speed of rotation after engine and brake, before the ground acts on it."""
    if gas > 0.0:
        omega += ENGINE_WORK * gas / WHEEL_MOMENT_OF_INERTIA / (abs(omega) + IDLE_OMEGA)
    if brake >= BLOCKING_BRAKE:
        return 0.0
    if brake > 0.0:
        omega -= math.copysign(min(BRAKE_SLOWING * brake, abs(omega)), omega)
    return omega
