"""What `lab play` does: a policy acts in its environment, watched in a window, on film or by testers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from torch import Tensor

from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.device import prepare_torch
from rl_lab.config.policy import Player, TrainedPolicy, load_policy
from rl_lab.config.resume import read_config
from rl_lab.config.targets import Targets
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import UsageError
from rl_lab.core.seeding import isolated_rng
from rl_lab.tracking.checkpoint_choice import choose_checkpoint
from rl_lab.tracking.film import Camera, resized
from rl_lab.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from rl_lab.robots.legged_env import LeggedEnv

TESTER_WORLDS = 64
SIZE = (640, 480)  # of pictures of robots; others draw in their own size


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    checkpoint: str
    video: bool
    record_length: int  # steps
    fps: int | None
    frame_size: tuple[int, int] | None  # width, height
    joystick: tuple[float, ...] | None  # its scale; None: no joystick
    keyboard: bool
    testers: tuple[str, ...]
    test_length: int  # steps
    num_envs: int | None
    overrides: tuple[str, ...]
    explore: bool
    seed: int
    device: str | None


def carry_out(run: RunDirectory, wish: Wish, plugins: list[str]) -> dict[str, Any]:
    """Play as wished and return what happened, as a tree for JSON."""
    policy = _load(run, wish, plugins)
    try:
        robot = _robot(policy.env)
        if robot is None and (wish.testers or wish.keyboard or wish.joystick):
            raise UsageError(f"--testers, --keyboard and --joystick command a robot, not {policy.env.spec.id!r}")
        with isolated_rng(wish.seed):
            result = _play(policy, robot, wish) if robot is None or not wish.testers else _test(policy, robot, wish)
    finally:
        policy.env.close()
    return {"run": str(run.path), "checkpoint": str(policy.loaded.path), **result}


def _load(run: RunDirectory, wish: Wish, plugins: list[str]) -> TrainedPolicy:
    for text in wish.overrides:
        if not text.lstrip("+").startswith("environment."):
            raise UsageError(f"--override {text}: only options of the environment (environment.KEY=VALUE)")
        if text.lstrip("+").startswith("environment.num_envs="):
            raise UsageError(f"--override {text}: --num-envs says how many worlds there are")
    experiment = {**read_config(run)["experiment"], "precision": "float32"}  # of a GPU, perhaps, and this may be none
    if wish.device is not None:
        experiment["device"] = wish.device
    return load_policy(
        run,
        choose_checkpoint(run, wish.checkpoint),
        Targets(AllowList(load_plugins(plugins))),
        prepare_torch(experiment),
        precision="float32",
        num_envs=_num_envs(wish),
        overrides=wish.overrides,
        with_pictures=wish.video,
    )


def _num_envs(wish: Wish) -> int:
    """Return the number of worlds: a joystick and a window are for one, testers like many."""
    if wish.testers:
        return wish.num_envs or TESTER_WORLDS
    return 1 if wish.joystick or wish.keyboard else wish.num_envs or 1


def _robot(env: VectorEnv) -> LeggedEnv | None:
    """Return the environment if it is a robot's; the module is only there where a run needs it, and so is MuJoCo."""
    module = sys.modules.get("rl_lab.robots.legged_env")
    return env if module is not None and isinstance(env, module.LeggedEnv) else None


def _test(policy: TrainedPolicy, robot: LeggedEnv, wish: Wish) -> dict[str, Any]:
    """Play the testers and return their table; CSV, films and plots go into the run's `test`."""
    from rl_lab.robots.tester_plots import plot_tester
    from rl_lab.robots.testers import TESTERS, run_testers

    folder = policy.run.path / "test"
    testers = TESTERS if "all" in wish.testers else tuple(dict.fromkeys(wish.testers))

    @contextmanager
    def watch(tester: str) -> Iterator[Callable[[], None] | None]:
        with _filming(policy.env, robot, folder / f"{tester}_video", wish) as film:
            yield film.look if wish.video else None

    rows = run_testers(
        robot,
        Player(policy, explore=wish.explore),
        testers=testers,
        steps=wish.test_length,
        seed=wish.seed,
        directory=folder,
        watch=watch,
    )
    for tester in testers:
        plot_tester(folder / f"{tester}.csv")
    table = [{key: None if value != value else value for key, value in row.items()} for row in rows]  # JSON has no NaN
    return {"directory": str(folder), "testers": table}


def _play(policy: TrainedPolicy, robot: LeggedEnv | None, wish: Wish) -> dict[str, Any]:
    """Play in a window until it is closed, or film so many steps."""
    hand = _hand(robot, wish)
    has_window, is_filmed = _ways_to_look(policy.env, robot, wish)
    path = policy.run.media / f"play_{policy.step:09d}"
    with _filming(policy.env, robot, path, wish) as film, _window(robot, has_window, hand) as show:

        def look() -> bool:
            if robot is not None and hand is not None:
                robot.commands.fixed = hand.read().to(robot.device).expand(robot.num_envs, 3)
            if is_filmed and film.steps < wish.record_length:
                film.look()
            return show()

        steps = wish.record_length if not has_window else None
        result = play(policy.env, Player(policy, explore=wish.explore), look, seed=wish.seed, steps=steps)
    return {**result, "video": None if film.path is None else str(film.path)}


def _ways_to_look(env: VectorEnv, robot: LeggedEnv | None, wish: Wish) -> tuple[bool, bool]:
    """Return whether there is a window, and whether there is a film."""
    if robot is None:
        if not wish.video:
            raise UsageError(f"the viewer shows robots, not {env.spec.id!r}: --video films it")
        return False, True
    from rl_lab.environments.offscreen import has_display

    if has_display():
        return wish.keyboard or not wish.video, wish.video
    if wish.keyboard:
        raise UsageError(
            "--keyboard takes keys of the viewer's window, and there is no display (--joystick needs none)"
        )
    if not wish.video:
        typer.echo("note: there is no display for the viewer; a video is made instead (--video)", err=True)
    return False, True


def _hand(robot: LeggedEnv | None, wish: Wish) -> Any:
    """Return the keyboard or joystick that commands the robot, if any."""
    if robot is None or not (wish.joystick or wish.keyboard):
        return None
    from rl_lab.robots.commanding import Joystick, Keyboard

    ranges = robot.commands.ranges
    return Joystick(wish.joystick, ranges) if wish.joystick else Keyboard(ranges)


@contextmanager
def _window(robot: LeggedEnv | None, has_window: bool, hand: Any) -> Iterator[Callable[[], bool]]:
    """Give the function that ends a look: it shows the step, or waits for a person's hand, or does nothing."""
    if robot is None or not (has_window or hand):
        yield lambda: True
        return
    from rl_lab.core.pace import Pace
    from rl_lab.robots.commanding import Keyboard
    from rl_lab.robots.viewer import Viewer

    if not has_window:
        yield Pace(robot.world.facts.dt).wait
        return
    viewer = Viewer(robot, hand.press if isinstance(hand, Keyboard) else None)
    try:
        yield viewer.show
    finally:
        viewer.close()


@contextmanager
def _filming(env: VectorEnv, robot: LeggedEnv | None, path: Path, wish: Wish) -> Iterator[Camera]:
    """Give a camera; whatever happens, what it filmed is kept."""

    def draw() -> Tensor:
        if robot is not None:
            return robot.world.sim.render(0, *(wish.frame_size or SIZE))
        picture = env.render()
        if picture is None:
            raise UsageError(f"environment {env.spec.id!r} draws no pictures: there is nothing to film")
        return picture if wish.frame_size is None else resized(picture, *wish.frame_size)

    camera = Camera(draw, path, env.spec.steps_per_second, wish.fps)
    try:
        yield camera
    finally:
        camera.close()


def play(env: VectorEnv, policy: Player, look: Callable[[], bool], *, seed: int, steps: int | None) -> dict[str, Any]:
    """Step until `look`, which is called before each step, says no, or for so many; return what was played."""
    obs, is_first = env.reset(seed), torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    totals, finished, count = torch.zeros(env.num_envs, device=env.device), list[float](), 0
    try:
        while (steps is None or count < steps) and look():
            step = env.step(policy(obs, is_first))
            obs, is_first, count = step.observations, step.terminated | step.truncated, count + 1
            totals += step.rewards
            finished += totals[is_first].tolist()
            totals *= ~is_first
    except KeyboardInterrupt:
        pass  # the usual way to end: what was filmed is kept
    mean = sum(finished) / len(finished) if finished else None
    return {"steps": count, "episodes": len(finished), "return": mean}
