"""Model groups: which models share a rate limit.

The state of a group lives in ``state``; this file only knows names.
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^(?:.*[./])?(?=claude-)")
_SUFFIX = re.compile(r"(?:\[[^\]]*\]|-v\d+(?::\d+)?|[-@]\d{8}|[-@]latest|@default)$")
#: Families whose members are counted in one combined bucket (rate-limit page of the API).
_COMBINED = re.compile(r"^(claude-(?:opus|sonnet)-4)(?:-\d{1,2})?$")


def group_of(model: str, lane: str = "") -> str:
    """The name of the group whose limits a model shares.

    Args:
        model: a model id in any spelling: dated, ``-latest``, with a provider's prefix or ``[1m]``.
        lane: limits apart from those of ordinary messages on the same model: ``fast``,
            ``count_tokens``, ``batches``; empty for ordinary messages.

    Returns:
        For example ``claude-opus-4`` for every Opus 4.x, ``claude-opus-5-5`` for that model alone,
        ``claude-opus-5-5 fast`` for its fast lane. Unknown names are groups of their own.
    """
    name = _PREFIX.sub("", model.strip().lower())
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    combined = _COMBINED.match(name)
    if combined is not None:
        name = combined[1]
    return f"{name} {lane}" if lane else name
