"""The actor's end over gRPC: records every step at once, and sends what is recorded whenever a learner answers."""

from __future__ import annotations

import logging
import random
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from rl_lab.core.errors import LabError
from rl_lab.core.trees import Tree
from rl_lab.distributed.transport import transport_pb2 as messages
from rl_lab.distributed.transport.callers import TOKEN_KEY, read_token
from rl_lab.distributed.transport.interface import Answer, NoRoom, Sender, SenderStatus, TransportError, Weights
from rl_lab.distributed.transport.limits import Limits
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.security import LEARNER_NAME, check_address, read_keys
from rl_lab.distributed.transport.service import NAME, SESSION_KEY
from rl_lab.distributed.transport.spool import Spool
from rl_lab.distributed.transport.weights import WeightsInbox

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a new channel does not inherit how long the last one had to wait
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
_HELLO_S, _LOOK_S = 5.0, 0.25
_BACKOFF_S = (0.1, 5.0)  # the first wait before a new try, and the longest
_BATCH_BYTES = 1 << 18
_FINAL = (grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED)
Metadata = tuple[tuple[str, str], ...]
logger = logging.getLogger(__name__)


class GrpcSender(Sender):
    """Sends the steps of a spool to the learner at an address, and keeps the newest weights.

    Args:
        address: HOST:PORT or unix:PATH of the learner.
        schema: Of the steps.
        directory: For the spool and the weights; what an earlier process left there is sent first.
        actor: Its name, the one in its certificate.
        certificate: The actor's NAME.pem, with NAME.key and ca.pem beside it; needed beyond this machine.
        limits: What the learner may ask for.
        spool_bytes: When so much waits for the learner, `send` waits too.
        sync_every_step: Survive a power cut in `send`, and not only before a step is sent.
        address_file: Holds the learner's address where that is another one after each of its starts.
    """

    def __init__(
        self,
        address: str,
        schema: Schema,
        directory: Path,
        *,
        actor: str,
        certificate: Path | None,
        limits: Limits,
        spool_bytes: int,
        sync_every_step: bool,
        address_file: Path | None = None,
    ) -> None:
        self._address = check_address(address, is_secured=certificate is not None)
        self._address_file = address_file
        self._credentials = None if certificate is None else _credentials(certificate, actor)
        self._schema, self._actor, self._limits = schema, actor, limits
        self._spool = Spool(directory / "spool", schema, max_bytes=spool_bytes, sync_every_step=sync_every_step)
        self._inbox = WeightsInbox(directory / "weights", limits.weights_bytes)
        self._process = secrets.token_hex(8)
        self._closing = threading.Event()
        self._is_connected, self._error, self._fault = False, "not connected yet", ""
        self._call: Any = None
        self._line: tuple[grpc.Channel, Any] | None = None  # while there is a session: its channel and metadata
        self._thread = threading.Thread(target=self._run, name="transport", daemon=True)
        self._thread.start()

    @property
    def run(self) -> str:
        """Return the name of the spool."""
        return self._spool.run

    def send(self, step: Tree, timeout_s: float | None = None, *, is_last: bool = False) -> int:
        """Record a step in the spool; where nobody will ever ask for it, it is the last one."""
        fault = self._fault
        try:
            seq = self._spool.append(self._schema.encode(step), timeout_s, is_last=is_last or bool(fault))
        except NoRoom as error:
            if not fault:
                raise
            raise TransportError(f"{fault}; step {self._spool.next} was not recorded") from error  # no use to wait
        if fault:
            raise TransportError(f"{fault}; all steps up to {seq} are recorded")
        return seq

    def newest_weights(self) -> Weights | None:
        """Return the newest whole version, once."""
        return self._inbox.take()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the learner has acknowledged all steps."""
        return self._spool.wait_acknowledged(timeout_s)

    def ask(self, payload: bytes, timeout_s: float) -> Answer | None:
        """Ask the learner how to act; None while there is none."""
        line = self._line
        if line is None:
            return None
        channel, metadata = line
        try:
            call = channel.unary_unary(
                f"/{NAME}/Act", messages.ActRequest.SerializeToString, messages.ActReply.FromString
            ).future(messages.ActRequest(question=payload), timeout=timeout_s, metadata=metadata)
        except ValueError:  # the channel was closed meanwhile
            return None
        return _Answer(call)

    def status(self) -> SenderStatus:
        """Return how far the steps have come."""
        error = "" if self._is_connected else self._fault or self._error
        return SenderStatus(self._is_connected, self._spool.next, self._spool.acknowledged, error)

    def close(self) -> None:
        """Stop sending; the steps that were not acknowledged stay in the spool."""
        self._closing.set()
        if self._call is not None:
            self._call.cancel()
        self._spool.wake()
        self._thread.join()
        self._spool.close()

    def _run(self) -> None:
        delay, longest = _BACKOFF_S
        while not self._closing.is_set() and not self._fault:
            try:
                self._talk()
            except grpc.RpcError as error:
                self._note(error)
            except (LabError, OSError) as error:
                self._fault = " ".join(str(error).split())
            if self._is_connected:
                delay = _BACKOFF_S[0]
            self._is_connected = False
            if not self._fault:
                self._closing.wait(delay * random.uniform(0.5, 1.0))  # not all robots at once
                delay = min(2 * delay, longest)
        if self._fault:
            logger.error("actor %s: %s", self._actor, self._fault)

    def _talk(self) -> None:
        """Connect once and stay connected as long as it goes."""
        over = threading.Event()
        with self._channel() as channel:
            proof = self._proof()
            reply = self._hello(channel, proof)
            metadata = (*proof, (SESSION_KEY, reply.session))
            self._call = channel.stream_stream(
                f"/{NAME}/Push", messages.Steps.SerializeToString, messages.Acknowledgement.FromString
            )(self._batches(reply.next, over), metadata=metadata)
            if self._closing.is_set():  # `close` came before there was this call to cancel
                self._call.cancel()
            pulling = threading.Thread(target=self._pull, args=(channel, reply.log, metadata, over), daemon=True)
            pulling.start()
            try:
                self._is_connected, self._line = True, (channel, metadata)
                for acknowledgement in self._call:
                    self._spool.acknowledge(acknowledgement.next)
            finally:
                self._line = None
                over.set()
                self._spool.wake()
                channel.close()
                pulling.join()

    def _hello(self, channel: grpc.Channel, proof: Metadata) -> messages.HelloReply:
        spool = self._spool
        call = channel.unary_unary(
            f"/{NAME}/Hello", messages.HelloRequest.SerializeToString, messages.HelloReply.FromString
        )
        request = messages.HelloRequest(
            actor=self._actor, run=spool.run, schema=self._schema.text, first=spool.first, process=self._process
        )
        reply = call(request, timeout=_HELLO_S, metadata=proof)
        if not spool.first <= reply.next <= spool.next:
            held = f"this spool holds steps {spool.first} to {spool.next} of run {spool.run}"
            raise TransportError(f"the learner goes on at step {reply.next}, {held}; one of them lost its files")
        if reply.next > spool.acknowledged:
            spool.acknowledge(reply.next)
        return reply

    def _batches(self, start: int, over: threading.Event) -> Iterator[messages.Steps]:
        reader = self._spool.reader(start)
        try:
            while not over.is_set() and not self._closing.is_set():
                size = min(_BATCH_BYTES, self._limits.message_bytes // 2)
                if frames := self._spool.read(reader, size, _LOOK_S):
                    yield messages.Steps(frames=frames)
        except (TransportError, OSError) as error:
            if not over.is_set() and not self._closing.is_set():
                self._fault = " ".join(str(error).split())

    def _pull(self, channel: grpc.Channel, log: str, metadata: Any, over: threading.Event) -> None:
        """Collect weights; a version that is wrong is asked for again."""
        while not over.is_set():
            try:
                since, partial, offset = self._inbox.progress(log)
                request = messages.WeightsRequest(log=log, since=since, partial=partial, offset=offset)
                for piece in channel.unary_stream(
                    f"/{NAME}/PullWeights", messages.WeightsRequest.SerializeToString, messages.WeightsPiece.FromString
                )(request, metadata=metadata):
                    self._inbox.add(piece.log, piece.version, piece.sha256, piece.size, piece.offset, piece.data)
            except (grpc.RpcError, TransportError, OSError) as error:
                if not over.is_set() and not isinstance(error, grpc.RpcError):
                    logger.warning("actor %s: %s", self._actor, error)
            except ValueError:  # the channel was closed before the call began
                return
            over.wait(_BACKOFF_S[1] / 5)

    def _dialled(self) -> str:
        """Return the learner's address of this moment."""
        if self._address_file is not None and self._address_file.is_file():
            return check_address(self._address_file.read_text(), is_secured=self._credentials is not None)
        return self._address

    def _proof(self) -> Metadata:
        """Return what says, where there are no certificates, that it is the learner's own user who calls."""
        address = self._dialled()
        if self._credentials is not None or address.startswith("unix:"):
            return ()
        token = read_token(int(address.rpartition(":")[2]))
        return () if token is None else ((TOKEN_KEY, token),)

    def _channel(self) -> grpc.Channel:
        options = (*_OPTIONS, ("grpc.max_receive_message_length", self._limits.message_bytes))
        address = self._dialled()
        if self._credentials is None:
            return grpc.insecure_channel(address, options=options)
        named = (*options, ("grpc.ssl_target_name_override", LEARNER_NAME))
        return grpc.secure_channel(address, self._credentials, options=named)

    def _note(self, error: grpc.RpcError) -> None:
        """Remember why the connection ended, and whether another try can help."""
        code, text = error.code(), " ".join(str(error.details()).split())
        if self._closing.is_set():
            return
        if code in _FINAL:
            self._fault = f"the learner refuses: {text}"
        elif text != self._error:
            logger.warning("actor %s: %s, tries again: %s", self._actor, code.name, text)
        self._error = text


class _Answer:
    """The reply of a call that is on its way."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def done(self) -> bool:
        """Return whether the call has ended."""
        return bool(self._call.done())

    def payload(self) -> bytes | None:
        """Return the actions, or None where the call failed."""
        try:
            reply: messages.ActReply = self._call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if isinstance(error, grpc.RpcError) and error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                logger.warning("the learner does not say how to act: %s", " ".join(str(error.details()).split()))
            return None
        return reply.actions


def _credentials(certificate: Path, name: str) -> grpc.ChannelCredentials:
    keys = read_keys(certificate, "actor", name)
    return grpc.ssl_channel_credentials(keys.authority, keys.key, keys.certificate)
