"""The wire of openpi's policy server: msgpack with arrays, over a WebSocket.

The server says its metadata first; every request is a dict of arrays and words, every answer a dict with `actions`.
A text in the place of an answer is the server's error. Arrays are dicts of `__ndarray__`, `data`, `dtype` and `shape`.
What comes in is read as numbers and nothing else: no dtype that could hold objects, no size that does not fit its data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.core import ConfigError, LabError

try:
    import msgpack
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise ConfigError('an openpi server\'s client needs pip install "rl-lab[vla]"') from error

NUMBERS = "biuf"  # kinds of dtype that an array may have: booleans, integers, floats
MAX_BYTES = 64 << 20  # of a message that is read


class PolicyServerError(LabError):
    """A policy server that cannot be reached, or does not speak as it should."""


class OpenpiConnection:
    """One connection, made when it is first needed and again when it was lost.

    Args:
        address: Such as `ws://127.0.0.1:8000`.
        timeout_s: For a connection, and for an answer.
        api_key: Sent along; openpi's own server does not look at it.
    """

    def __init__(self, address: str, timeout_s: float = 10.0, api_key: str | None = None) -> None:
        if not address.startswith(("ws://", "wss://")):
            raise ConfigError(f"address: {address!r} must begin with ws:// or wss://")
        self._address, self._timeout_s = address, timeout_s
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._socket: ClientConnection | None = None
        self._opened = ExitStack()
        self.metadata: dict[str, Any] = {}

    def infer(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's answer; a connection that was lost is made once more."""
        is_old, message = self._socket is not None, pack(observation)
        try:
            return self._ask(message)
        except (OSError, WebSocketException) as error:
            self.close()
            if not is_old or isinstance(error, TimeoutError):  # one that thinks is not asked again
                raise self._trouble(error) from error
        except PolicyServerError:
            self.close()
            raise
        return self.infer(observation)

    def close(self) -> None:
        """Hang up."""
        self._opened.close()
        self._socket = None

    def _ask(self, message: bytes) -> dict[str, Any]:
        if self._socket is None:
            self._socket = self._connected()
        self._socket.send(message)
        return self._read(self._socket)

    def _connected(self) -> ClientConnection:
        options = connect(
            self._address,
            compression=None,
            max_size=MAX_BYTES,
            additional_headers=self._headers,
            open_timeout=self._timeout_s,
            proxy=None,
        )
        socket: ClientConnection = self._opened.enter_context(options)
        self.metadata = self._read(socket)
        return socket

    def _read(self, socket: ClientConnection) -> dict[str, Any]:
        message = socket.recv(self._timeout_s)
        if isinstance(message, str):
            line = (message.strip().splitlines() or ["nothing"])[-1]  # of a traceback
            raise PolicyServerError(f"the policy server at {self._address} failed: {line[:200]}")
        return unpack(message)

    def _trouble(self, error: Exception) -> PolicyServerError:
        kind = f"did not answer in {self._timeout_s:g} s" if isinstance(error, TimeoutError) else f"is gone ({error})"
        return PolicyServerError(f"the policy server at {self._address} {kind}")


def pack(message: Mapping[str, Any]) -> bytes:
    """Return a message of numbers, words, arrays and dicts of them as bytes."""
    packed: bytes = msgpack.packb(message, default=_packed_array)
    return packed


def unpack(data: bytes) -> dict[str, Any]:
    """Return a message; raises PolicyServerError for anything but a dict of plain values and arrays of numbers."""
    try:
        message = msgpack.unpackb(data, object_hook=_unpacked_array, ext_hook=_refuse_extension)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PolicyServerError(f"the policy server sent what is no message: {error}") from error
    if not isinstance(message, dict):
        raise PolicyServerError(f"the policy server sent a {type(message).__name__} in the place of a dict")
    return message


def _packed_array(value: Any) -> dict[bytes, Any]:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in NUMBERS:
        raise TypeError(f"cannot be sent to a policy server: {type(value).__name__}")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _unpacked_array(part: dict[Any, Any]) -> Any:
    if b"__npgeneric__" in part:
        return _number_type(part).type(part[b"data"])
    return _array(part) if b"__ndarray__" in part else part


def _array(part: dict[Any, Any]) -> NDArray[Any]:
    dtype, shape, data = _number_type(part), part.get(b"shape"), part.get(b"data")
    fits = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not fits or not isinstance(data, bytes) or len(data) != dtype.itemsize * math.prod(shape or ()):
        raise ValueError(f"an array of shape {shape} that its data does not fill")
    return np.frombuffer(data, dtype).reshape(shape)


def _number_type(part: dict[Any, Any]) -> np.dtype[Any]:
    dtype = np.dtype(str(part.get(b"dtype")))
    if dtype.kind not in NUMBERS or dtype.hasobject:
        raise ValueError(f"an array of {dtype}, which are no numbers")
    return dtype


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"an extension ({code}) of msgpack")
