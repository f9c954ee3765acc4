"""What passes between a face and an engine, and its form on a socket. No pickle: msgspec structs as msgpack.

A frame is its length (4 bytes, little endian) and one message. Frames over MAX_FRAME and bytes that are no message of
the expected side raise WireError; the reader drops the peer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Generic, TypeVar

import msgspec

from octavo import errors
from octavo.config import EngineConfig
from octavo.engine.port import EngineStats, ModelInfo
from octavo.errors import EngineError, OctavoError
from octavo.request import Request, TokenDelta

MAX_FRAME = 64 * 2**20


class WireError(EngineError):
    default_code = "bad_frame"


# ---- face -> engine
class Open(msgspec.Struct, tag=True, frozen=True):
    """The first frame: what to load."""

    config: EngineConfig


class Submit(msgspec.Struct, tag=True, frozen=True):
    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True):
    request_id: str


class Finish(msgspec.Struct, tag=True, frozen=True):
    """A stop string ended the text after `at_token` output tokens."""

    request_id: str
    at_token: int
    stop_reason: str


class Close(msgspec.Struct, tag=True, frozen=True):
    pass


Command = Open | Submit | Abort | Finish | Close


# ---- engine -> face
class Progress(msgspec.Struct, tag=True, frozen=True):
    """Bytes of weights read so far, of `total`."""

    done: int
    total: int


class Ready(msgspec.Struct, tag=True, frozen=True):
    info: ModelInfo
    stats: EngineStats


class Fault(msgspec.Struct, tag=True, frozen=True):
    """The engine has stopped, or could not start. kind: a class of errors.py."""

    kind: str
    message: str
    code: str

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        if isinstance(error, OctavoError) and hasattr(errors, type(error).__name__):
            return cls(type(error).__name__, error.message, error.code)
        if isinstance(error, OctavoError):
            return cls("EngineError", error.message, error.code)
        return cls("EngineError", f"{type(error).__name__}: {error}", "internal_error")

    def error(self) -> OctavoError:
        kind = getattr(errors, self.kind, EngineError)
        fit = kind if isinstance(kind, type) and issubclass(kind, OctavoError) else EngineError
        return fit(self.message, code=self.code)


class Update(msgspec.Struct, tag=True, frozen=True):
    """What one turn of the loop brought. stats: when they are told anew. fault: the last update of an engine that
    failed."""

    deltas: tuple[TokenDelta, ...]
    stats: EngineStats | None
    fault: Fault | None = None


Event = Progress | Ready | Fault | Update

M = TypeVar("M")


class Channel(Generic[M]):
    """One end of a stream socket. Sending from any thread, receiving from one."""

    def __init__(self, sock: socket.socket, receives: object) -> None:
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(receives)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def pack(self, message: Command | Event) -> bytes:
        """The frame of a message. Raises WireError for one that is too large."""
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME:
            raise WireError(f"a message of {len(body)} bytes exceeds the frame limit of {MAX_FRAME}")
        return len(body).to_bytes(4, "little") + body

    def write(self, frame: bytes) -> None:
        """Blocks while the peer does not read. Raises OSError when it is gone."""
        with self._lock:
            self._socket.sendall(frame)

    def send(self, message: Command | Event) -> None:
        self.write(self.pack(message))

    def receive(self) -> M | None:
        """The next message; None when the peer has closed its end."""
        head = self._exactly(4)
        if head is None:
            return None
        size = int.from_bytes(head, "little")
        if size > MAX_FRAME:
            raise WireError(f"a frame of {size} bytes exceeds the limit of {MAX_FRAME}")
        body = self._exactly(size)
        if body is None:
            raise WireError("the peer closed in the middle of a frame")
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, OctavoError) as error:
            raise WireError(f"not a message: {error}") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 2**20))
            except ConnectionError:
                part = b""
            if not part:
                if data:
                    raise WireError("the peer closed in the middle of a frame")
                return None
            data += part
        return bytes(data)
