"""The door before a learner with certificates: it sees who was not let in, which gRPC does not tell.

Every connection is passed on, as it is, to gRPC, which asks for certificates and ends those that have none. One that
ends before it made a call that it may make was a stranger's, and is logged with its address.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from rl_lab.distributed.transport.refusals import Refusals

_PIECE = 1 << 18
_HELLO_S = 10.0  # to begin to speak, and to let gRPC in
_MOST = 1024  # connections at a time; more are ended at once
_PAUSE_S = 1.0
_DEAD_MS = 30_000  # that a peer may leave what it was sent without an answer
_TLS_HANDSHAKE = b"\x16"  # the first byte of every TLS connection
logger = logging.getLogger(__name__)


@dataclass
class _Visit:
    """A connection."""

    address: str  # of the peer
    ends: tuple[socket.socket, socket.socket]
    is_known: bool = False  # a call of it was let in, or refused by name


class Front:
    """Listens where actors dial, and passes their bytes on to a socket on this machine.

    Args:
        host: Where to listen.
        port: Its port; 0: a free one.
        inner: Name of the abstract socket on which gRPC listens.
        refusals: Where strangers are told.
        most_each: Connections of one host at a time.
    """

    def __init__(self, host: str, port: int, inner: str, refusals: Refusals, *, most_each: int) -> None:
        self._inner, self._refusals, self._most_each = inner, refusals, most_each
        self._of: Counter[str] = Counter()  # connections of each host
        self._visits: dict[str, _Visit] = {}  # by the name that gRPC knows them by
        self._guard = threading.Lock()
        self._is_closing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=host == "::")
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="transport-front", daemon=True)
        self._thread.start()

    def address_of(self, peer: str) -> str:
        """Return the address of who is behind a connection of gRPC's; who is asked about has come that far."""
        with self._guard:
            visit = self._visits.get(peer)
            if visit is None:
                return peer
            visit.is_known = True
            return visit.address

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._is_closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self._thread.join()
        with self._guard:
            visits = list(self._visits.values())
        for visit in visits:
            for end in visit.ends:
                _shut(end)

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                peer, place = self._listener.accept()
            except OSError as error:
                if not self._is_closing:
                    logger.error("no connection can be accepted: %s", error)
                    time.sleep(_PAUSE_S)  # too many open files, say: others may leave
                continue
            address = f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"
            if why := self._enter(place[0]):
                self._refusals.add(address, why)
                peer.close()
                continue
            work = (peer, address, place[0])
            try:
                threading.Thread(target=self._attend, args=work, name="transport-peer", daemon=True).start()
            except RuntimeError as error:  # the system gives no more threads
                self._refusals.add(address, str(error))
                self._leave(place[0])
                peer.close()

    def _enter(self, host: str) -> str:
        """Count a connection of a host, or return why there is no room for it."""
        with self._guard:
            if self._of[host] >= self._most_each:
                return f"{host} has {self._most_each} connections already"
            if self._of.total() >= _MOST:
                return "there are too many connections"
            self._of[host] += 1
            return ""

    def _leave(self, host: str) -> None:
        with self._guard:
            self._of[host] -= 1
            if not self._of[host]:
                del self._of[host]

    def _attend(self, peer: socket.socket, address: str, host: str) -> None:
        """Pass on what a peer says until it leaves, and say so where it was a stranger."""
        name, visit = f"rl-lab-{secrets.token_hex(16)}", None
        why = "it has no certificate of this lab that is valid, or left too early"
        try:
            with peer, socket.socket(socket.AF_UNIX) as inner:
                peer.settimeout(_HELLO_S)
                first = peer.recv(1, socket.MSG_PEEK)
                if first != _TLS_HANDSHAKE:
                    why = "it does not speak TLS" if first else "it said nothing"
                    return
                peer.settimeout(None)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS)
                inner.bind(f"\0{name}")
                visit = _Visit(address, (peer, inner))
                with self._guard:
                    self._visits[f"unix-abstract:{name}"] = visit
                inner.connect(f"\0{self._inner}")
                back = threading.Thread(target=_pass_on, args=(inner, peer), name="transport-back", daemon=True)
                back.start()
                _pass_on(peer, inner)
                back.join()
        except TimeoutError:
            why = "it said nothing"
        except RuntimeError as error:  # the system gives no more threads
            why = str(error)
        except OSError as error:
            why = f"its connection broke ({error.strerror or error})"
        finally:
            with self._guard:
                self._visits.pop(f"unix-abstract:{name}", None)
            self._leave(host)
            if not (visit is not None and visit.is_known) and not self._is_closing:
                self._refusals.add(address, why)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until one of them ends, and end both."""
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with suppress(OSError):
        while size := source.recv_into(buffer):
            target.sendall(view[:size])
    for end in (source, target):
        _shut(end)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
