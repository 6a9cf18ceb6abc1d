"""Content encodings that can be read while the bytes go by: gzip, deflate, and brotli and zstd where installed."""

from __future__ import annotations

import zlib
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Protocol

_PLAIN = frozenset({"", "identity"})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
#: Lets zlib tell gzip and deflate apart by themselves.
_EITHER = zlib.MAX_WBITS | 32


class Unreadable(Exception):
    """Bytes that are not in the encoding that they were said to be in, or an encoding that is not known."""


class Decoder(Protocol):
    """Takes a body in pieces and gives back what it says so far."""

    def feed(self, piece: bytes) -> bytes:
        """The next bytes of the body.

        Raises:
            Unreadable: they can't be decoded; nothing that follows can be.
        """


def decoder_of(encoding: str) -> Decoder:
    """A decoder for one body.

    Args:
        encoding: the ``content-encoding`` header.

    Raises:
        Unreadable: no decoder for it is installed.
    """
    name = encoding.strip().lower()
    if name in _PLAIN:
        return _Plain()
    if name in _PACKED:
        return _Zlib()
    if name == "br" and (brotli := _module("brotli")) is not None:
        return _Brotli(brotli)
    if name == "zstd" and (zstd := _zstd()) is not None:
        return _Zstd(zstd)
    raise Unreadable(encoding)


@lru_cache(maxsize=256)
def is_readable(encoding: str) -> bool:
    """Whether a body in this encoding can be read."""
    try:
        decoder_of(encoding)
    except Unreadable:
        return False
    return True


@cache
def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _zstd() -> Any:
    """The standard library's from Python 3.14 on, its backport before."""
    return _module("compression.zstd") or _module("backports.zstd")


class _Plain:
    __slots__ = ()

    def feed(self, piece: bytes) -> bytes:
        return piece


class _Zlib:
    __slots__ = ("_inner",)

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_EITHER)

    def feed(self, piece: bytes) -> bytes:
        try:
            data = self._inner.decompress(piece)
            while self._inner.eof and self._inner.unused_data:
                rest = self._inner.unused_data
                self._inner = zlib.decompressobj(_EITHER)
                data += self._inner.decompress(rest)
        except zlib.error as error:
            raise Unreadable(str(error)) from None
        return data


class _Brotli:
    __slots__ = ("_fault", "_inner")

    def __init__(self, brotli: Any) -> None:
        self._fault = brotli.error
        self._inner = brotli.Decompressor()

    def feed(self, piece: bytes) -> bytes:
        try:
            return bytes(self._inner.process(piece))
        except self._fault as error:
            raise Unreadable(str(error)) from None


class _Zstd:
    __slots__ = ("_inner", "_module")

    def __init__(self, zstd: Any) -> None:
        self._module = zstd
        self._inner = zstd.ZstdDecompressor()

    def feed(self, piece: bytes) -> bytes:
        data, rest = b"", piece
        try:
            while rest:  # one pass for each frame; the next one may begin with a piece of its own
                if self._inner.eof:
                    self._inner = self._module.ZstdDecompressor()
                data += bytes(self._inner.decompress(rest))
                rest = self._inner.unused_data
        except self._module.ZstdError as error:
            raise Unreadable(str(error)) from None
        return data
