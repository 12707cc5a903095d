"""The two ends by a name in YAML: `memory` in one process, `host` on one machine, `network` between machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rl_lab.core.errors import ConfigError, check_choice, unknown_name
from rl_lab.core.trees import Tree
from rl_lab.distributed.transport.interface import Receiver, Sender
from rl_lab.distributed.transport.limits import Limits
from rl_lab.distributed.transport.memory import MemoryReceiver, MemorySender
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.segments import MAX_RECORD

MAX_STEP = MAX_RECORD - 64
KINDS = ("memory", "host", "network")


@dataclass(frozen=True)
class TransportConfig:
    """The `transport` block; actor and learner may share one, each with its own `directory` and `certificate`."""

    kind: str = "memory"
    address: str = ""  # network: HOST:PORT; host: the path of a socket
    address_file: str | None = None  # of a learner that chose its port: holds its address, while it is there
    directory: str = "transport"  # of the spool or the log
    certificate: str | None = None  # NAME.pem of lab certs
    actor: str = "actor"  # its name, the one in its certificate
    spool_bytes: int = 1 << 33  # that may wait on the actor for the learner; then `send` waits
    sync_every_step: bool = False  # survive a power cut from `send` on; otherwise from the moment a step is sent
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_choice("transport.kind", self.kind, KINDS)
        if self.kind != "memory" and not self.address:
            raise ConfigError(f"transport.address is missing: transport.kind={self.kind} needs it")

    @classmethod
    def read(cls, block: Mapping[str, Any]) -> TransportConfig:
        """Return the config of a YAML block; an unknown key is refused with the known ones."""
        known = _checked("transport", block, cls)
        limits = Limits(**_checked("transport.limits", known.pop("limits", {}), Limits))
        return cls(**known, limits=limits)

    @property
    def target(self) -> str:
        """Return the address as gRPC writes it."""
        return f"unix:{Path(self.address).absolute()}" if self.kind == "host" else self.address


def open_receiver(config: TransportConfig, example: Tree) -> Receiver:
    """Return the learner's end for steps like `example`."""
    schema = _fitting(config, example)
    if config.kind == "memory":
        return MemoryReceiver(schema, config.limits.unread_bytes)
    _need_grpc(config)
    from rl_lab.distributed.transport.learner_end import GrpcReceiver

    return GrpcReceiver(config.target, schema, Path(config.directory), _certificate(config), config.limits)


def open_sender(config: TransportConfig, example: Tree, receiver: Receiver | None = None) -> Sender:
    """Return the actor's end for steps like `example`; in one process it needs the learner's."""
    schema = _fitting(config, example)
    if config.kind == "memory":
        if not isinstance(receiver, MemoryReceiver):
            raise ConfigError("transport.kind=memory joins two ends in one process; choose host or network for two")
        return MemorySender(receiver, config.actor)
    _need_grpc(config)
    from rl_lab.distributed.transport.actor_end import GrpcSender

    return GrpcSender(
        config.target,
        schema,
        Path(config.directory),
        actor=config.actor,
        certificate=_certificate(config),
        limits=config.limits,
        spool_bytes=config.spool_bytes,
        sync_every_step=config.sync_every_step,
        address_file=None if config.address_file is None else Path(config.address_file),
    )


def _certificate(config: TransportConfig) -> Path | None:
    return None if config.certificate is None or config.kind == "host" else Path(config.certificate)


def _fitting(config: TransportConfig, example: Tree) -> Schema:
    schema = Schema(example)
    if config.kind != "memory" and 2 * schema.step_bytes > config.limits.message_bytes:
        raise ConfigError(
            f"transport.limits.message_bytes is {config.limits.message_bytes}: a step has {schema.step_bytes} bytes, "
            f"which needs {2 * schema.step_bytes + 1024}"
        )
    if schema.step_bytes > MAX_STEP:
        raise ConfigError(f"a step has {schema.step_bytes} bytes, at most {MAX_STEP} can be recorded")
    return schema


def _need_grpc(config: TransportConfig) -> None:
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"transport.kind={config.kind} needs grpcio: pip install 'rl-lab[human]'") from error


def _checked(path: str, block: Mapping[str, Any], target: type) -> dict[str, Any]:
    known = [entry.name for entry in fields(target)]
    for key in block:
        if key not in known:
            raise ConfigError(unknown_name(f"key in {path}", key, known))
    return dict(block)
