"""`lab play RUN`: watch a run's policy act, command it, or test it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root, RunCode
from rl_lab.cli.report import Reported

Testers = Annotated[
    list[str] | None,
    typer.Option(
        "--testers",
        help="normal, zero, x, y, yaw, forward, backward or all: with commas, or several times.",
        show_default=False,
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option("--override", help="environment.KEY=VALUE, several times.", show_default=False),
]
JoystickScale = Annotated[str, typer.Option("--joystick-scale", help="Largest vx, vy (m/s), yaw rate (rad/s).")]
NumEnvs = Annotated[int | None, typer.Option("--num-envs", min=1, help="Worlds (1; 64 for testers).")]
FrameSize = Annotated[str | None, typer.Option("--frame-size", help="Width and height (640,480 for robots).")]

HEADINGS = {
    "velocity_rms": "v err m/s",
    "yaw_rate_rms": "yaw err rad/s",
    "falls": "falls",
    "torque_rms": "torque N m",
    "slip": "slip m/s",
    "power": "power W",
    "energy_per_m": "J/m",
    "reward": "reward /s",
}


def play(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run directory; none: the newest.", show_default=False)] = None,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="latest, best, cycle:N or a path.")] = "latest",
    video: Annotated[bool, typer.Option("--video", help="Film it, under media/ (of testers: test/).")] = False,
    record_length: Annotated[int, typer.Option("--record-length", min=1, help="Steps of the film.")] = 200,
    fps: Annotated[
        int | None, typer.Option("--fps", min=1, help="Pictures per second (each step, at most 50).")
    ] = None,
    frame_size: FrameSize = None,
    joystick: Annotated[bool, typer.Option("--joystick", help="Command the robot by a joystick.")] = False,
    joystick_scale: JoystickScale = "1.5,1,3",
    keyboard: Annotated[bool, typer.Option("--keyboard", help="Command it by keys of the viewer's window.")] = False,
    testers: Testers = None,
    test_length: Annotated[int, typer.Option("--test-length", min=1, help="Steps of each tester.")] = 500,
    num_envs: NumEnvs = None,
    override: Override = None,
    explore: Annotated[bool, typer.Option("--explore", help="Sample actions as in training.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the episodes.")] = 0,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda:N (that of the run).")] = None,
    run_code: RunCode = False,
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Let a run's policy act in its environment: in a window, on film or under testers."""
    with Reported(debug):
        names = tuple(name.strip() for each in testers or () for name in each.split(","))
        _check_hands(joystick, keyboard, names)
        scale = _numbers("--joystick-scale", joystick_scale, 3)
        size = None if frame_size is None else _size(frame_size)
        from rl_lab.cli.code_state import settle_code
        from rl_lab.cli.playing import Wish, carry_out
        from rl_lab.tracking.catalogue import find_run

        found = find_run(root or DEFAULT_ROOT, run)
        settle_code(found, plugin or [], context if run_code else None)
        filmed = (video, record_length, fps, size)
        tested = (names, test_length, num_envs, tuple(override or ()))
        wish = Wish(checkpoint, *filmed, tuple(scale) if joystick else None, keyboard, *tested, explore, seed, device)
        _print(carry_out(found, wish, plugin or []), as_json)


def _check_hands(joystick: bool, keyboard: bool, testers: tuple[str, ...]) -> None:
    from rl_lab.core.errors import UsageError

    chosen = [
        name for name, is_on in (("--joystick", joystick), ("--keyboard", keyboard), ("--testers", testers)) if is_on
    ]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)}: only one of them can command the robot")


def _numbers(option: str, text: str, count: int) -> list[float]:
    from rl_lab.core.errors import UsageError

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise UsageError(f"{option} {text}: expected {count} numbers with commas between them")
    return numbers


def _size(text: str) -> tuple[int, int]:
    from rl_lab.core.errors import UsageError

    width, height = _numbers("--frame-size", text, 2)
    if not (16 <= width <= 8192 and 16 <= height <= 8192):
        raise UsageError(f"--frame-size {text}: width and height are 16 to 8192")
    return int(width), int(height)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    if "testers" in result:
        _print_table(result["testers"])
        typer.echo(f"testers: {result['directory']}")
        return
    mean = "" if result["return"] is None else f", mean return {result['return']:.6g}"
    typer.echo(f"played: {result['steps']} steps, {result['episodes']} episodes ended{mean}")
    if result["video"] is not None:
        typer.echo(f"video: {result['video']}")


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("tester", no_wrap=True, min_width=8), *HEADINGS.values(), title="testers", box=SIMPLE)
    for row in rows:
        table.add_row(row["tester"], *(_short(row[key]) for key in HEADINGS))
    Console(soft_wrap=True).print(table)


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{round(value, 2):g}"
