"""`lab env check ID` and `lab env bench ID`: whether an environment keeps its promises, and how fast it steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import ConfigDir, Debug, Json, Plugin
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from rl_lab.cli.env_config import EnvConfig
    from rl_lab.core.environment import State
    from rl_lab.environments.checking.bench import Setting, Speed
    from rl_lab.environments.checking.check import Finding

app = typer.Typer(help="Check and measure environments, your own too.", no_args_is_help=True)
CHECKED_COPIES = 2  # are enough to see what copies do to each other
Id = Annotated[
    str, typer.Argument(metavar="ID", help="Of `lab list environments`, or a name: CartPole-v1, module:function.")
]
BlockOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...", help="key=value of the environment block, e.g. num_envs=4.", show_default=False
    ),
]


@app.command("check")
def check(
    name: Id,
    overrides: BlockOverrides = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Vector steps (enough, by itself).")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the environment and of the actions.")] = 0,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check shapes, types, bounds, seeding, resets, final observations and exact state; exit code 1 when one fails."""
    with Reported(debug):
        config = _read(name, overrides or [], plugin or [], config_dir)
        findings = []
        for finding in _findings(config, overrides or [], steps, seed):
            findings.append(finding)
            if not as_json:
                typer.echo(f"{_label(finding):<7} {finding.name}: {finding.detail}")
        _conclude(name, findings, as_json)


def _findings(config: EnvConfig, overrides: list[str], steps: int | None, seed: int) -> Iterator[Finding]:
    from rl_lab.environments.checking.check import check_environment

    copies = {} if _is_given("num_envs", overrides) else {"num_envs": min(_num_envs(config), CHECKED_COPIES)}
    return check_environment(
        lambda: config.build(**copies),
        steps=steps,
        seed=seed,
        round_trip=_through_checkpoint,
        make_single=config.single(),
    )


def _conclude(name: str, findings: list[Finding], as_json: bool) -> None:
    counts = {status: sum(f.status == status for f in findings) for status in ("ok", "warning", "failed")}
    if as_json:
        checks = [finding._asdict() for finding in findings]
        typer.echo(json.dumps({"environment": name, **counts, "checks": checks}, indent=1))
    else:
        typer.echo(f"{name}: {counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed")
    if counts["failed"]:
        raise SystemExit(1)


def _label(finding: Finding) -> str:
    return finding.status.upper() if finding.status == "failed" else finding.status


@app.command("bench")
def bench(
    name: Id,
    overrides: BlockOverrides = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Per setting.")] = 1.0,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure env steps per second by the number of copies and workers, and recommend a setting."""
    with Reported(debug):
        from rl_lab.environments.checking.bench import bench_environment

        config = _read(name, overrides or [], plugin or [], config_dir)
        settings = _settings(config)
        config.build(**_arguments(config, settings[0])).close()  # what is wrong with every setting is told once
        if not as_json:
            typer.echo(f"{'backend':<8} {'copies':>7} {'workers':>8} {'env steps/s':>12}")
        speeds = []
        for speed in bench_environment(lambda setting: config.build(**_arguments(config, setting)), settings, seconds):
            speeds.append(speed)
            if not as_json:
                typer.echo(_row(speed))
        _recommend(name, speeds, as_json)


def _recommend(name: str, speeds: list[Speed], as_json: bool) -> None:
    from rl_lab.core.errors import EnvironmentFault
    from rl_lab.environments.checking.bench import best, recommend

    top, chosen = best(speeds), recommend(speeds)
    if top is None or chosen is None:
        raise EnvironmentFault(f"{name} ran in no setting: {speeds[0].error}")
    if as_json:
        rows = [speed.to_json() for speed in speeds]
        facts = {"best": top.to_json(), "recommended": chosen.setting.overrides}
        typer.echo(json.dumps({"environment": name, "rows": rows, **facts}, indent=1))
        return
    typer.echo(f"best: {top.steps_per_s:,.0f} env steps/s with {top.setting.overrides}")
    typer.echo(f"recommended (the fewest copies within a tenth of it): {chosen.setting.overrides}")


def _row(speed: Speed) -> str:
    setting = speed.setting
    number = f"{speed.steps_per_s:,.0f}" if speed.error is None else f"failed: {speed.error}"
    return f"{setting.backend or 'batched':<8} {setting.num_envs:>7} {setting.num_workers or '':>8} {number:>12}"


def _read(name: str, overrides: list[str], plugins: list[str], config_dir: str | None) -> EnvConfig:
    from rl_lab.cli.env_config import read_environment

    return read_environment(name, overrides, plugins, config_dir)


def _is_given(key: str, overrides: list[str]) -> bool:
    from rl_lab.config.overrides import parse_overrides

    return any(parsed.key_or_group in (key, f"environment.{key}") for parsed in parse_overrides(overrides))


def _num_envs(config: EnvConfig) -> int:
    """Return how many copies the block asks for; a class that says nothing of copies is left alone."""
    return int(config.node.get("num_envs", CHECKED_COPIES))


def _settings(config: EnvConfig) -> list[Setting]:
    from rl_lab.environments.checking.bench import batched_settings, hosted_settings, other_settings
    from rl_lab.environments.tensor_env import TensorEnv

    if "backend" in config.arguments:
        return hosted_settings()
    is_batched = isinstance(config.target, type) and issubclass(config.target, TensorEnv)
    return batched_settings() if is_batched else other_settings()


def _arguments(config: EnvConfig, setting: Setting) -> dict[str, Any]:
    given = {"num_envs": setting.num_envs, "backend": setting.backend, "num_workers": setting.num_workers}
    for_workers = {"on_crash": "raise", "timeout_s": None} if setting.backend == "sync" else {}
    return {key: value for key, value in given.items() if value is not None} | {
        key: value for key, value in for_workers.items() if key in config.arguments
    }


def _through_checkpoint(state: State) -> State:
    """Return a state as a checkpoint would give it back."""
    from rl_lab.tracking.state_codec import decode, encode

    tensors, structure = encode(state)
    restored: State = decode(json.loads(json.dumps(structure)), tensors)
    return restored
