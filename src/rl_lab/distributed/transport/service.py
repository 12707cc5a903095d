"""The learner's side of each call: who calls, what it may, and what becomes of what it sent."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from rl_lab.distributed.transport import transport_pb2 as messages
from rl_lab.distributed.transport.callers import Callers, Revoked, Unproven
from rl_lab.distributed.transport.frames import FrameError, split_all
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.limits import Limits
from rl_lab.distributed.transport.questions import Questions
from rl_lab.distributed.transport.refusals import Refusals
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.security import Identity
from rl_lab.distributed.transport.sessions import Replaced, Session, Sessions
from rl_lab.distributed.transport.step_log import OrderError, StepLog, Stream
from rl_lab.distributed.transport.weights import WeightsStore

NAME = "rl_lab.transport.Transport"
SESSION_KEY = "rl-lab-session"
PIECE_BYTES = 1 << 20  # of weights in a message
_LOOK_S = 0.25  # between two looks whether a waiting call is still wanted
_MAX_SEQ = 1 << 62
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_Request = TypeVar("_Request", messages.HelloRequest, messages.Steps, messages.WeightsRequest, messages.ActRequest)
logger = logging.getLogger(__name__)


class Service:
    """Answers actors and viewers.

    Args:
        log: Where steps go.
        weights: What actors get.
        schema: Of the steps.
        limits: What a peer may ask for.
        callers: Who calls.
        refusals: Where those are told who may not.
        locate: Returns the address of a peer by the name that gRPC has for it.
    """

    def __init__(
        self,
        log: StepLog,
        weights: WeightsStore,
        schema: Schema,
        limits: Limits,
        *,
        callers: Callers,
        refusals: Refusals,
        locate: Callable[[str], str] = str,
    ) -> None:
        self._log, self._weights, self._schema, self._limits = log, weights, schema, limits
        self._callers, self._refusals, self._locate, self._is_closing = callers, refusals, locate, False
        self._sessions, self.questions = Sessions(limits), Questions()

    def handler(self) -> Any:
        """Return what a gRPC server needs to call the methods below."""
        unary, push = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        pull = grpc.unary_stream_rpc_method_handler
        methods = {  # requests come as bytes: a server that fails to read one itself never forgets it
            "Hello": unary(self.hello, None, messages.HelloReply.SerializeToString),
            "Push": push(self.push, None, messages.Acknowledgement.SerializeToString),
            "PullWeights": pull(self.pull_weights, None, messages.WeightsPiece.SerializeToString),
            "Act": unary(self.act, None, messages.ActReply.SerializeToString),
            "Status": unary(self.status, None, messages.StatusReply.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(NAME, methods)

    @property
    def num_connected(self) -> int:
        """Return how many actors push steps now."""
        return len(self._sessions.connected())

    def close(self) -> None:
        """Let waiting calls end."""
        self._is_closing = True

    def hello(self, data: bytes, context: grpc.ServicerContext) -> messages.HelloReply:
        """Open a session."""
        peer = self._locate(context.peer())
        request = self._parse(messages.HelloRequest, data, context)
        actor = self._caller(context, "Hello", request.actor)
        if not all(map(_WORD.fullmatch, (request.actor, request.run, request.process))) or request.first > _MAX_SEQ:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"{actor.name}: the hello is malformed")
        if request.actor != actor.name:
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{actor.name} says that it is {request.actor}")
        try:
            self._sessions.admit(actor.name, request.process)
        except Replaced as error:
            self._refuse(context, grpc.StatusCode.ABORTED, str(error))
        except TransportError as error:
            self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        self._check_schema(request.schema, actor.name, context)
        stream = Stream(actor.name, request.run)
        try:
            following = self._log.cursor(stream, request.first)
        except TransportError as error:
            self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        session = self._sessions.open(request.process, stream)
        logger.info("actor %s, run %s at %s: connected, step %d is next", actor.name, request.run, peer, following)
        return messages.HelloReply(session=session.token, next=following, log=self._log.id)

    def push(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[messages.Acknowledgement]:
        """Take steps; each message is checked as a whole, logged durably and then acknowledged."""
        session = self._enter(context, "Push")
        try:
            for data in requests:
                request = self._parse(messages.Steps, data, context)
                try:
                    frames = split_all(request.frames, self._schema.step_bytes)
                    for step in frames:
                        self._schema.check(step.payload)
                except (FrameError, TransportError) as error:
                    self._refuse(context, grpc.StatusCode.DATA_LOSS, f"{session.stream.actor}: {error}")
                self._wait_for_room(session, context, len(frames))
                self._caller(context, "Push", session.stream.actor)  # it may have been revoked
                try:
                    yield messages.Acknowledgement(next=self._log.append(session.stream, frames))
                except OrderError as error:
                    self._refuse(context, grpc.StatusCode.OUT_OF_RANGE, str(error))
                except TransportError as error:
                    self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._sessions.leave(session, "Push", context)

    def pull_weights(self, data: bytes, context: grpc.ServicerContext) -> Iterator[messages.WeightsPiece]:
        """Send the newest version in pieces, then wait for the next one; a half-sent one is finished first."""
        request = self._parse(messages.WeightsRequest, data, context)
        session = self._enter(context, "PullWeights")
        is_mine = request.log == self._log.id
        since, partial, offset = (request.since, request.partial, request.offset) if is_mine else (0, 0, 0)
        try:
            while context.is_active() and not self._is_closing:
                version = self._weights.newer(since, _LOOK_S)
                self._caller(context, "PullWeights", session.stream.actor, session)  # it may have been revoked
                if version is None:
                    continue
                start = offset if version.number == partial and offset < version.size else 0
                try:
                    with open(version.path, "rb") as file:
                        file.seek(start)
                        while piece := file.read(min(PIECE_BYTES, self._limits.message_bytes // 2)):
                            yield messages.WeightsPiece(
                                log=self._log.id,
                                version=version.number,
                                sha256=version.sha256,
                                size=version.size,
                                offset=start,
                                data=piece,
                            )
                            start += len(piece)
                except FileNotFoundError:  # two newer ones have been published since
                    continue
                since, partial = version.number, 0
        finally:
            self._sessions.leave(session, "PullWeights", context)

    def act(self, data: bytes, context: grpc.ServicerContext) -> messages.ActReply:
        """Let the learner say what to do; the caller's deadline says how long that may take."""
        request = self._parse(messages.ActRequest, data, context)
        session = self._enter(context, "Act")
        try:
            question = self.questions.put(session.stream, request.question)
        except TransportError as error:
            self._sessions.leave(session, "Act", context)
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"{session.stream.actor}: {error}")
        try:
            _sleep(session.questions.take(1), context.is_active)
            answer = question.wait(lambda: context.is_active() and not self._is_closing)
        finally:
            self.questions.forget(question)
            self._sessions.leave(session, "Act", context)
        if answer is None:
            self._refuse(context, grpc.StatusCode.UNAVAILABLE, f"{session.stream.actor}: nobody waits for this answer")
        return messages.ActReply(actions=answer)

    def status(self, _: bytes, context: grpc.ServicerContext) -> messages.StatusReply:
        """Say what is here."""
        self._caller(context, "Status", "viewer")
        connected, newest = self._sessions.connected(), self._weights.newest
        streams = [
            messages.StreamStatus(actor=stream.actor, run=stream.run, next=next_, is_connected=stream in connected)
            for stream, next_ in self._log.cursors().items()
        ]
        version = newest.number if newest else 0
        return messages.StatusReply(streams=streams, unread=self._log.num_unread, version=version)

    def _parse(self, kind: type[_Request], data: bytes, context: grpc.ServicerContext) -> _Request:
        """Return the message in these bytes, or end the call."""
        if len(data) > self._limits.message_bytes:
            text = f"a {kind.__name__} of {len(data)} bytes is larger than transport.limits.message_bytes"
            self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        try:
            return kind.FromString(data)
        except DecodeError:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"these {len(data)} bytes are no {kind.__name__}")

    def _check_schema(self, text: str, actor: str, context: grpc.ServicerContext) -> None:
        if text == self._schema.text:
            return
        try:
            difference = self._schema.difference(text)
        except TransportError as error:
            self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"{actor}: {error}")
        self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"{actor}: the steps differ: {difference}")

    def _caller(
        self, context: grpc.ServicerContext, call: str, claimed: str, session: Session | None = None
    ) -> Identity:
        """Return who calls, or end the call, and all of its session where its certificate was revoked meanwhile."""
        self._locate(context.peer())  # TLS has let it in
        try:
            return self._callers.identify(context, call, claimed)
        except Unproven as error:
            self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        except TransportError as error:
            if session is not None and isinstance(error, Revoked) and error.name == session.stream.actor:
                self._sessions.end(session)
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))

    def _enter(self, context: grpc.ServicerContext, call: str) -> Session:
        try:
            session = self._sessions.find(str(dict(context.invocation_metadata()).get(SESSION_KEY, "")))
        except TransportError as error:
            self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        actor = self._caller(context, call, session.stream.actor, session)
        if actor.name != session.stream.actor:
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{actor.name} uses a session of another actor")
        try:
            self._sessions.enter(session, call, context)
        except TransportError as error:
            self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return session

    def _wait_for_room(self, session: Session, context: grpc.ServicerContext, count: int) -> None:
        """Wait until the learner has caught up and the actor's rate allows it: back-pressure, and nothing dropped."""
        _sleep(session.steps.take(count), lambda: context.is_active() and not self._is_closing)
        while not self._log.has_room(_LOOK_S):
            if self._is_closing or not context.is_active():
                self._refuse(context, grpc.StatusCode.UNAVAILABLE, "the learner is closing")
        if not self._sessions.is_current(session):
            self._refuse(context, grpc.StatusCode.ABORTED, f"another process speaks for {session.stream.actor} now")

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
        """End a call with one line, and log it."""
        context.abort(code, self._refusals.add(self._locate(context.peer()), text))
        raise AssertionError("abort raises")


def _sleep(seconds: float, is_wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and is_wanted():
        time.sleep(min(left, _LOOK_S))
