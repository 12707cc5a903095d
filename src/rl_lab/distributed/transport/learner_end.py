"""The learner's end over gRPC: one port that actors dial, a log that they cannot outrun."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from torch import Tensor

from rl_lab.core.errors import LabError
from rl_lab.core.revocations import Revocations
from rl_lab.distributed.transport.callers import Callers, token_path, write_token
from rl_lab.distributed.transport.front import Front
from rl_lab.distributed.transport.interface import Question, Received, Receiver, ReceiverStatus
from rl_lab.distributed.transport.limits import Limits
from rl_lab.distributed.transport.refusals import Refusals
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.security import KeyFiles, check_address, check_free, read_keys, taken
from rl_lab.distributed.transport.service import Service
from rl_lab.distributed.transport.step_log import StepLog
from rl_lab.distributed.transport.weights import WeightsStore

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port that is taken is an error
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.max_concurrent_streams", 16),  # of one connection
    ("grpc.server_handshake_timeout_ms", 10_000),
)
_UNREAD = 8  # times the size of a message, above which gRPC refuses one unread, and does not say so here
_GRACE_S, _STOP_S = 0.5, 10.0


class GrpcReceiver(Receiver):
    """Listens on an address and keeps what comes in a directory.

    Args:
        address: HOST:PORT (port 0: a free one) or unix:PATH.
        schema: Of the steps.
        directory: For the log and the weights.
        certificate: The learner's NAME.pem, with NAME.key and ca.pem beside it; needed beyond this machine.
        limits: What an actor may ask for.
    """

    def __init__(self, address: str, schema: Schema, directory: Path, certificate: Path | None, limits: Limits) -> None:
        self._schema, self._limits = schema, limits
        bound = check_address(address, is_secured=certificate is not None)
        check_free(bound)
        keys = None if certificate is None else read_keys(certificate, "learner")
        self._front: Front | None = None
        self._token: Path | None = None
        self._log = StepLog(directory / "log", schema, max_unread=limits.unread_bytes)
        self._weights = WeightsStore(directory / "published")
        workers = _streams(limits)
        self._pool = futures.ThreadPoolExecutor(workers, thread_name_prefix="transport")
        options = (*_OPTIONS, ("grpc.max_receive_message_length", _UNREAD * limits.message_bytes))
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=workers)
        try:
            self.address = self._listen(bound, keys)
        except (RuntimeError, OSError) as error:
            self._log.close()
            raise taken(address) from error
        except LabError:
            self._log.close()
            raise
        self._server.start()

    def receive(self, max_steps: int, timeout_s: float) -> list[Received]:
        """Return the next steps of the log."""
        logged = self._log.read(max_steps, timeout_s)
        return [Received(*step.stream, step.seq, self._schema.decode(step.payload)) for step in logged]

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Write a version of the weights, which waiting actors then get."""
        return self._weights.publish(tensors)

    def get_state(self) -> dict[str, Any]:
        """Return the place in the log."""
        return self._log.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Read the log again from the place of `state`."""
        self._log.set_state(state)

    def release(self, state: Mapping[str, Any]) -> None:
        """Delete the log before the place of `state`."""
        self._log.release(state)

    def serve(self, question_bytes: int) -> None:
        """Let actors ask how to act."""
        self._service.questions.num_bytes = question_bytes

    def questions(self) -> Sequence[Question]:
        """Return the questions that wait for an answer."""
        return self._service.questions.take()

    def status(self) -> ReceiverStatus:
        """Return how many actors push steps, and how far the log is ahead."""
        return ReceiverStatus(self._service.num_connected, self._log.num_unread)

    def close(self) -> None:
        """Stop listening; what is logged stays."""
        self._service.close()
        if self._token is not None:
            self._token.unlink(missing_ok=True)
        self._server.stop(_GRACE_S).wait(_STOP_S)
        if self._front is not None:
            self._front.close()
        self._pool.shutdown(wait=True)
        self._log.close()

    def _listen(self, address: str, keys: KeyFiles | None) -> str:
        """Listen for those who may call, and return where that is."""
        refusals = Refusals()
        if keys is not None:
            return self._listen_secured(address, keys, refusals)
        if address.startswith("unix:"):
            with _private_files():
                self._server.add_insecure_port(address)
            self._serve(Callers(), refusals)
            return address
        port = self._server.add_insecure_port(address)
        self._token = token_path(port)
        self._serve(Callers(token=write_token(port)), refusals)
        return f"{address.rpartition(':')[0]}:{port}"

    def _listen_secured(self, address: str, keys: KeyFiles, refusals: Refusals) -> str:
        callers = Callers(Revocations(keys.directory))
        credentials = grpc.ssl_server_credentials(((keys.key, keys.certificate),), keys.authority, True)
        if address.startswith("unix:"):
            self._server.add_secure_port(address, credentials)
            self._serve(callers, refusals)
            return address
        host, _, port = address.rpartition(":")
        inner = f"rl-lab-{secrets.token_hex(16)}"
        self._server.add_secure_port(f"unix-abstract:{inner}", credentials)
        self._front = Front(host.strip("[]"), int(port), inner, refusals, most_each=_streams(self._limits))
        self._serve(callers, refusals, self._front.address_of)
        return f"{host}:{self._front.port}"

    def _serve(self, callers: Callers, refusals: Refusals, locate: Callable[[str], str] = str) -> None:
        self._service = Service(
            self._log, self._weights, self._schema, self._limits, callers=callers, refusals=refusals, locate=locate
        )
        self._server.add_generic_rpc_handlers((self._service.handler(),))


def _streams(limits: Limits) -> int:
    """Return for how many calls there is room: those of all actors, and a few that only ask."""
    return 3 * limits.actors + 8


@contextmanager
def _private_files() -> Iterator[None]:
    """Let files that are made here be the owner's alone, from their first moment on."""
    before = os.umask(0o077)  # of the whole process: its other threads may make directories
    try:
        yield
    finally:
        os.umask(before)
