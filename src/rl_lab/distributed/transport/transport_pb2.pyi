from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HelloRequest(_message.Message):
    __slots__ = ("actor", "run", "schema", "first", "process")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    actor: str
    run: str
    schema: str
    first: int
    process: str
    def __init__(self, actor: _Optional[str] = ..., run: _Optional[str] = ..., schema: _Optional[str] = ..., first: _Optional[int] = ..., process: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("session", "next", "log")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    session: str
    next: int
    log: str
    def __init__(self, session: _Optional[str] = ..., next: _Optional[int] = ..., log: _Optional[str] = ...) -> None: ...

class Steps(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    def __init__(self, frames: _Optional[bytes] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("next",)
    NEXT_FIELD_NUMBER: _ClassVar[int]
    next: int
    def __init__(self, next: _Optional[int] = ...) -> None: ...

class WeightsRequest(_message.Message):
    __slots__ = ("log", "since", "partial", "offset")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    log: str
    since: int
    partial: int
    offset: int
    def __init__(self, log: _Optional[str] = ..., since: _Optional[int] = ..., partial: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class WeightsPiece(_message.Message):
    __slots__ = ("log", "version", "sha256", "size", "offset", "data")
    LOG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    log: str
    version: int
    sha256: str
    size: int
    offset: int
    data: bytes
    def __init__(self, log: _Optional[str] = ..., version: _Optional[int] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("question",)
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    question: bytes
    def __init__(self, question: _Optional[bytes] = ...) -> None: ...

class ActReply(_message.Message):
    __slots__ = ("actions",)
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    actions: bytes
    def __init__(self, actions: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("streams", "unread", "version")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamStatus]
    unread: int
    version: int
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamStatus, _Mapping]]] = ..., unread: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("actor", "run", "next", "is_connected")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    actor: str
    run: str
    next: int
    is_connected: bool
    def __init__(self, actor: _Optional[str] = ..., run: _Optional[str] = ..., next: _Optional[int] = ..., is_connected: _Optional[bool] = ...) -> None: ...
