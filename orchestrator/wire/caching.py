"""Cache lifetimes: which one a request asks for, read from its markers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from budgets.errors import UnknownPrice
from budgets.shape import Ttl

#: A marker as it stands in the JSON text that ``prompts`` makes. Inside a string every quote is
#: escaped, so text that merely talks about markers never matches.
_MARKER_OPENS = '"cache_control": {'
_MARKER = re.compile(r'"cache_control": \{([^{}]*)\}')
_TTL = re.compile(r'"ttl": "([^"]*)"')


def longest_ttl(text: str) -> Ttl | None:
    """The longest lifetime that any marker in a request's JSON text asks for, None without markers.

    Raises:
        UnknownPrice: a marker asks for a lifetime that has no known price. Nothing was sent.
    """
    opened = text.count(_MARKER_OPENS)
    if not opened:
        return None
    markers = _MARKER.findall(text)
    # A marker with something nested in it can't be read here: price it as the dearest.
    longest: Ttl = "5m" if len(markers) == opened else "1h"
    for marker in markers:
        named = _TTL.search(marker)
        if named is not None and _known(named[1]) == "1h":
            longest = "1h"
    return longest


def longer(one: Ttl | None, other: Ttl | None) -> Ttl | None:
    """The longer of two lifetimes."""
    return "1h" if "1h" in {one, other} else one or other


def ttl_of(marker: object) -> Ttl | None:
    """The lifetime of one marker such as an advisor's ``caching``; None if there is none.

    Raises:
        UnknownPrice: the lifetime has no known price. Nothing was sent.
    """
    if not isinstance(marker, Mapping):
        return None
    ttl = marker.get("ttl")
    return "5m" if ttl is None else _known(ttl)


def _known(ttl: object) -> Ttl:
    if ttl == "5m":
        return "5m"
    if ttl == "1h":
        return "1h"
    msg = f"cache_control: no price is known for a lifetime of {ttl!r}; use '5m' or '1h'"
    raise UnknownPrice(msg, nearest=("5m", "1h"))
