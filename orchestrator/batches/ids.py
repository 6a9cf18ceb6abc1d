"""Ids that the API takes for the requests of a batch, made from whatever an item's identity is."""

from __future__ import annotations

import hashlib

_DIGITS = 40


def item_digest(job: str, identity: str) -> str:
    """Names an item of a job in 40 hex digits; the same each time."""
    plain = f"{job}\0{identity}".encode(errors="surrogatepass")
    return hashlib.blake2b(plain, digest_size=_DIGITS // 2).hexdigest()


def custom_id(digest: str, batch: int) -> str:
    """The ``custom_id`` of an item in one batch: one id is enough to know a batch again."""
    return f"{digest}-{batch}"


def digest_of(custom: str, batch: int) -> str | None:
    """The item's digest in a ``custom_id``; None if it is not one of this batch."""
    digest, _, number = custom.rpartition("-")
    return digest if number == str(batch) and len(digest) == _DIGITS else None
