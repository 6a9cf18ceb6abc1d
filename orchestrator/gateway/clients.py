"""Clients: which lease a request belongs to, by the key that it shows."""

from __future__ import annotations

import hmac
from collections import OrderedDict

from aiohttp import web

from .lease import KEY_MARK, Lease, digest_of
from .replies import Refusal, lease_ended, unknown_client

#: Keys of ended leases that are still told apart from unknown ones.
_REMEMBERED = 10_000


class Clients:
    """Everyone who may spend through a gateway.

    Attributes:
        anonymous: the lease of those who show no key of ours; None lets none in.
        needs_key: there are tokens, so that nobody is let in without one.
    """

    def __init__(self) -> None:
        self.anonymous: Lease | None = None
        self.needs_key = False
        self._by_digest: dict[bytes, Lease] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def add(self, lease: Lease) -> None:
        """Let a client in."""
        self._by_digest[lease.digest] = lease

    def forget(self, lease: Lease) -> None:
        """Its lease has ended."""
        if self._by_digest.pop(lease.digest, None) is not None:
            self._ended[lease.digest] = None
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)

    def all(self) -> list[Lease]:
        """Every lease with a key."""
        return list(self._by_digest.values())

    def close_all(self) -> None:
        """End every lease."""
        for lease in self.all():
            lease.close()
        if self.anonymous is not None:
            self.anonymous.close()

    def lease_of(self, http: web.BaseRequest, named: str) -> Lease:
        """The lease of a request.

        Args:
            http: the request; its key is in ``x-api-key`` or in ``Authorization: Bearer``.
            named: the lease that its path names, by id or by key; ``""`` if it names none.

        Raises:
            Refusal: nobody knows it, or its lease has ended.
        """
        keys = keys_of(http)
        if named.startswith(KEY_MARK):
            keys, named = [named], ""
        for key in keys:
            digest = digest_of(key)
            lease = self._by_digest.get(digest)
            if lease is not None and hmac.compare_digest(lease.digest, digest):
                if named and named != lease.id:
                    raise unknown_client()
                if not lease.is_live:
                    raise lease_ended()
                return lease
            if digest in self._ended:
                raise lease_ended()
        meant_for_us = named or any(key.startswith(KEY_MARK) for key in keys)
        if self.anonymous is None or self.needs_key or meant_for_us:
            raise unknown_client()
        check_no_browser(http)
        return self.anonymous

    def knows(self, http: web.BaseRequest) -> Lease | None:
        """The live lease whose key a request shows, if any."""
        for key in keys_of(http):
            lease = self._by_digest.get(digest_of(key))
            if lease is not None and lease.is_live:
                return lease
        return None


def keys_of(http: web.BaseRequest) -> list[str]:
    """The keys that a request shows, in either header."""
    shown = http.headers.get("x-api-key", "").strip()
    kind, _, bearer = http.headers.get("authorization", "").partition(" ")
    both = (shown, bearer.strip() if kind.lower() == "bearer" else "")
    return [key for key in both if key]


_OUR_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def check_no_browser(http: web.BaseRequest) -> None:
    """A web page must not spend, though its browser runs on this machine.

    Raises:
        Refusal: it comes from a page, or calls this machine by a foreign name.
    """
    host = http.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if "origin" in http.headers or (name and name.lower() not in _OUR_NAMES):
        raise Refusal(
            403,
            "without a token this gateway answers programs on this machine only, not web pages, and only by "
            "the name of localhost or 127.0.0.1",
            reason="browser",
        )
