"""Options of runs whose data actors collect elsewhere: the block `transport` of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_lab.config.block import Block
from rl_lab.core.ranges import Count


class TransportLimits(Block):
    """What one peer may ask of the other."""

    message_bytes: Count = Field(default=1 << 22, description="Of a message; twice a step must fit.")
    unread_bytes: Count = Field(
        default=1 << 28, description="Of steps that the learner has not read; then actors wait."
    )
    weights_bytes: Count = Field(default=1 << 34, description="Of a version of the weights.")
    steps_per_s: float = Field(default=20_000.0, gt=0, description="Of one actor; more is slowed down.")
    hellos_per_s: float = Field(default=5.0, gt=0, description="Of one actor; more are refused.")
    actors: Count = Field(default=32, description="At a time.")


class TransportConfig(Block):
    """Actors that collect while a learner learns, and what lies between them; `kind: null` is one process without."""

    kind: Literal["memory", "host", "network"] | None = Field(
        default=None,
        description="memory: actor and learner take turns in one process (lab train); host: processes of one machine; "
        "network: over TCP (both: lab start, or lab learner and lab actor); null: an ordinary run.",
    )
    address: str | None = Field(
        default=None,
        description="network: HOST:PORT of the learner; host: path of its socket, null: one named after the run.",
    )
    directory: str | None = Field(
        default=None,
        description="Of an actor's spool and weights; null: actors/<name> in the run's directory, or where it starts.",
    )
    certificate: str | None = Field(
        default=None, description="NAME.pem of lab certs; without one only this machine can be reached."
    )
    actor: str = Field(
        default="actor",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="Name of an actor, the one in its certificate: letters, digits and any of _ . -",
    )
    actors: Count = Field(
        default=1,
        description="How many collect. Steps of one enter buffers as they come, those of several as whole episodes.",
    )
    samplers: str | None = Field(
        default=None, description="Who starts actors with lab train: local, ray or ray:HOST:PORT; null: nobody."
    )
    publish_updates: Count = Field(default=50, description="Updates between two versions of the weights.")
    publish: list[str] | None = Field(
        default=None, description="Modules that actors need, such as [policy]; null: what the workflow broadcasts."
    )
    max_lead: Count | None = Field(
        default=None,
        description="Steps that an actor may be ahead of what the learner has taken while that is there; null: any, as "
        "a robot keeps its own pace.",
    )
    inference: Literal["actor", "learner"] = Field(
        default="actor", description="Where actions are computed: with weights on the actor, or by the learner."
    )
    chunk: Count = Field(default=1, description="Actions that the learner says at once: the action_horizon.")
    prefetch: int = Field(
        default=0, ge=0, description="Actions that are left when an actor asks for the next ones; less than chunk."
    )
    deadline_s: float = Field(
        default=0.2, gt=0, description="How long an actor waits for the learner's actions before it holds the pose."
    )
    spool_bytes: Count = Field(default=1 << 33, description="Of steps that may wait on an actor; then it waits too.")
    sync_every_step: bool = Field(default=False, description="Let a step survive a power cut once it is recorded.")
    limits: TransportLimits = Field(default=TransportLimits(), description="What one peer may ask of the other.")
