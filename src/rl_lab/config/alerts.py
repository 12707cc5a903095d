"""The `alerts` block: its rules are checked against their kinds before anything is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rl_lab.config.block import Block, Node
from rl_lab.config.signatures import signature_of
from rl_lab.config.typed_values import coerce, coerce_model
from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.ranges import Count
from rl_lab.tracking.alarm import Alarm
from rl_lab.tracking.alert_rules import KINDS, Response

if TYPE_CHECKING:
    from rl_lab.core.spaces import EnvSpec  # needs torch, which a listing does without

ChannelName = Literal["log", "file", "desktop", "webhook"]
FROM_ENVIRONMENT = "env:"
LOWERED = 0.5  # the learning rate, by lower_rate
_LOWERING = ("lower_rate", "roll_back")


class AlertsConfig(Block):
    """What is told when something is wrong with a run, where, and what the run does about it (docs/monitoring.md)."""

    rules: dict[str, Node | None] = Field(
        default={}, description="By name: kind, the options of that kind, and how it is told and responded to."
    )
    channels: list[ChannelName] = Field(
        default=["log"],
        description="Where rules are told that do not say it themselves: log (events.jsonl and terminal), file, "
        "desktop (notify-send), webhook.",
    )
    file: str | None = Field(
        default=None, description="Of the channel file, several runs may share it; null: alerts.jsonl of the run."
    )
    webhook: str | None = Field(
        default=None,
        pattern=r"^(https?://.+|env:\w+)$",
        description="URL that gets a POST of JSON, or env:NAME of a variable that holds it, so that no file does.",
    )
    timeout_s: float = Field(
        default=5.0, gt=0, description="For a webhook or the desktop to take one; the run does not wait for it."
    )


class RuleConfig(Block):
    """What every rule has beside the options of its kind."""

    kind: str = Field(description=f"What it looks for: {', '.join(KINDS)}.")
    channels: list[ChannelName] | None = Field(default=None, description="Where it is told; null: alerts.channels.")
    respond: Response | None = Field(
        default=None,
        description="What the run does about it, where the kind allows that: stop (checkpoint and leave), lower_rate, "
        "roll_back (go on from the last good checkpoint, without the updates since); null: nothing.",
    )
    factor: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description=f"That learning rates are multiplied by: at lower_rate (null: {LOWERED}) and at each roll_back "
        "(null: they stay).",
    )
    times: Count = Field(
        default=3, description="How often it lowers or rolls back at most; one roll_back more stops the run."
    )


def check_rules(alerts: Mapping[str, Any]) -> dict[str, Node | None]:
    """Return the rules with every value as its kind asks for it, or raise a ConfigError of one line."""
    return {name: None if node is None else _check_rule(name, node, alerts) for name, node in alerts["rules"].items()}


def _check_rule(name: str, node: Node, alerts: Mapping[str, Any]) -> Node:
    path = f"alerts.rules.{name}"
    given = {key: value for key, value in node.items() if key in RuleConfig.model_fields}
    if given.get("kind") != given.get("kind"):  # the command line reads the word nan as a number
        given["kind"] = "nan"
    common = coerce_model(path, given, RuleConfig)
    kind = KINDS.get(common["kind"])
    if kind is None:
        raise ConfigError(f"{path}.kind: {unknown_name('kind of alert', common['kind'], KINDS)}")
    arguments = _check_arguments(path, {key: value for key, value in node.items() if key not in given}, kind)
    _check_channels(path, common["channels"] or alerts["channels"], alerts)
    if common["respond"] is not None and common["respond"] not in kind.responses:
        allowed = ", ".join(kind.responses) or "nothing"
        raise ConfigError(f"{path}.respond: a rule of kind {common['kind']} can do {allowed}, not {common['respond']}")
    if common["factor"] is not None and common["respond"] not in _LOWERING:
        raise ConfigError(f"{path}.factor: goes with respond: {' or '.join(_LOWERING)}, not {common['respond']}")
    try:
        kind(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return common | arguments


def reject_responses(config: Mapping[str, Any]) -> None:
    """Refuse what a run of several processes, or one with actors, cannot do."""
    for name, rule in config["alerts"]["rules"].items():
        respond = None if rule is None else rule["respond"]
        path = f"alerts.rules.{name}.respond"
        if respond is not None and config["experiment"]["devices"] > 1:
            raise ConfigError(f"{path}: a run of several processes (experiment.devices) only tells alerts: set null")
        if respond == "roll_back" and config["transport"]["kind"] is not None:
            raise ConfigError(f"{path}: a run with actors (transport.kind) cannot roll back (choices: stop, null)")


def reject_roll_backs(config: Mapping[str, Any], spec: EnvSpec) -> None:
    """Refuse to go back in an environment that cannot be restored."""
    for name, rule in config["alerts"]["rules"].items():
        if rule is not None and rule["respond"] == "roll_back" and not spec.exact_resume:
            raise ConfigError(
                f"alerts.rules.{name}.respond: environment {spec.id!r} cannot be restored exactly, so that a run in it "
                "cannot roll back (choices: stop, null)"
            )


def _check_arguments(path: str, given: Node, kind: type) -> Node:
    known = {argument.name: argument for argument in signature_of(kind).arguments.values() if argument.name != "self"}
    for key in given:
        if key not in known:
            raise ConfigError(unknown_name(f"key in {path}", key, [*RuleConfig.model_fields, *known]))
    for key, argument in known.items():
        if argument.is_required and key not in given:
            raise ConfigError(f"{path}.{key}: missing")
    return {key: coerce(f"{path}.{key}", value, known[key].annotation) for key, value in given.items()}


def _check_channels(path: str, channels: list[str], alerts: Mapping[str, Any]) -> None:
    if "webhook" in channels and webhook_url(alerts) is None:
        where = alerts["webhook"]
        lacking = "give its URL" if where is None else f"the variable {where.removeprefix(FROM_ENVIRONMENT)} is not set"
        raise ConfigError(f"alerts.webhook: {path} is told there, but {lacking}")


def told_keys(alerts: Mapping[str, Any]) -> list[str]:
    """Return the keys of a block that say where its rules are told."""
    named = [name for name, rule in alerts.get("rules", {}).items() if rule is not None and rule.get("channels")]
    own = ["alerts.channels"] if "channels" in alerts else []
    return own + [f"alerts.rules.{name}.channels" for name in named]


def webhook_url(alerts: Mapping[str, Any]) -> str | None:
    """Return where alerts are posted, if that is known."""
    where: str | None = alerts["webhook"]
    if where is not None and where.startswith(FROM_ENVIRONMENT):
        return os.environ.get(where.removeprefix(FROM_ENVIRONMENT)) or None
    return where


def make_alarms(alerts: Mapping[str, Any]) -> list[Alarm]:
    """Return the alarms that a checked block names."""
    return [_alarm(name, node, alerts) for name, node in alerts["rules"].items() if node is not None]


def _alarm(name: str, node: Mapping[str, Any], alerts: Mapping[str, Any]) -> Alarm:
    arguments = {key: value for key, value in node.items() if key not in RuleConfig.model_fields}
    factor = LOWERED if node["respond"] == "lower_rate" and node["factor"] is None else node["factor"]
    return Alarm(
        name,
        node["kind"],
        KINDS[node["kind"]](**arguments),
        channels=node["channels"] or alerts["channels"],
        respond=node["respond"],
        factor=factor,
        times=node["times"],
    )
