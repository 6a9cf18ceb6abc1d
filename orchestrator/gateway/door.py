"""The door of a gateway: its address, taken before anything else is done, so that a failed start changes nothing.

Who may come in through it is the matter of ``clients``; what serves behind it is ``listening``.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError

from .tokens import Tokens

#: Connections that wait for the server to take them.
BACKLOG = 1024
_EVERY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - looked for, not listened on
_HTTP_PORT = 80
#: Names such as ``localhost`` stand for an address of either family; one of them is enough.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, tokens: Tokens | None) -> None:
    """A door that others can reach needs keys.

    Raises:
        ConfigError: not loopback and no tokens, or a token that can't be read.
    """
    known = tokens.all() if tokens is not None else []
    if not is_loopback(host) and not known:
        raise ConfigError(
            f"gateway: {host} can be reached by others, so it needs tokens first: "
            "earmark gateway token new --scope team/alice --cap-day 5"
        )


class Door:
    """An address that is taken: connections to it wait until somebody serves them, or until it is closed.

    Args:
        host: an address or a name of this machine.
        port: 0 takes a free one.

    Raises:
        OSError: the port is taken, or not ours to take; one sentence says which.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.sockets: list[socket.socket] = []
        try:
            self._take(_addresses(host, port))
        except BaseException:
            self.close()
            raise

    def _take(self, addresses: list[tuple[socket.AddressFamily, str]]) -> None:
        for family, address in addresses:
            one = socket.socket(family, socket.SOCK_STREAM)
            try:
                _taken(one, address, self.port)
            except OSError as error:
                one.close()
                if error.errno in _NOT_HERE and len(addresses) > 1:
                    continue
                raise OSError(error.errno, _why(error, self.host, self.port)) from None
            self.sockets.append(one)
            self.port = one.getsockname()[1]
        if not self.sockets:
            raise OSError(errno.EADDRNOTAVAIL, f"{self.host} is no address of this machine")

    @property
    def url(self) -> str:
        """The base URL for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def check_upstream(self, url: str) -> None:
        """What stands behind a door must not be the door.

        Raises:
            ConfigError: the upstream's base URL is this very address.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or (parts.port or _HTTP_PORT) != self.port:
            return
        ours = {one.getsockname()[0] for one in self.sockets}
        with contextlib.suppress(OSError):  # a name that nobody knows is nobody's
            theirs = {address for _, address in _addresses(parts.hostname or "", self.port)}
            # A door to every address is one to those of this machine, too.
            if ours & theirs or (ours & _EVERY and any(is_loopback(one) for one in theirs)):
                raise ConfigError(f"upstream: {url} is this gateway itself; name the API behind it")

    def close(self) -> None:
        """Give the address back."""
        for one in self.sockets:
            one.close()
        self.sockets = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise OSError(
            errno.EADDRNOTAVAIL, f"{host!r} is no address and no name of this machine"
        ) from None
    pairs = [(family, str(address[0])) for family, _, _, _, address in found]
    return list(dict.fromkeys(pairs))


def _taken(one: socket.socket, address: str, port: int) -> None:
    if os.name == "posix":  # elsewhere it would let two programs have the same port
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.setblocking(False)
    one.bind((address, port))
    # Bound alone it is not ours yet: two who only bind may both have it.
    one.listen(BACKLOG)


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken by another program; name another one (--port)"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"port {port} of {host} is not ours to take; name one above 1023 (--port)"
    return f"port {port} of {host} can't be listened on: {error.strerror}"
