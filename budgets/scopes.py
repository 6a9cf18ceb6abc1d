"""Scopes: the paths that caps limit, and the context in which calls are made.

A scope is a path such as ``run/researcher/worker-3``; every ancestor's caps apply too, up to ``""``,
which is everything. Paths below ``simulated`` are play money: they don't count in ``""``.
"""

from __future__ import annotations

import re
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Literal, Self

from .caps import Cap
from .errors import InvalidScope

Kind = Literal["run", "agent", "part"]

SIMULATED = "simulated"
_SEGMENT = re.compile(r"[^/\x00-\x1f\x7f\ud800-\udfff]{1,200}")
_MAX_DEPTH = 32


def normal_scope(path: str) -> str:
    """Check a scope path and drop slashes at its ends.

    Raises:
        InvalidScope: not a string, an empty or overlong segment, characters that can't be printed or
            stored, or more than 32 segments.
    """
    if not isinstance(path, str):
        raise InvalidScope(
            f"scope: {path!r} is not a path; write it as a string such as 'app/run-1'"
        )
    return _normal(path)


@lru_cache(maxsize=4096)
def _normal(path: str) -> str:
    stripped = path.strip().strip("/")
    if not stripped:
        return ""
    segments = stripped.split("/")
    if len(segments) > _MAX_DEPTH:
        raise InvalidScope(
            f"scope: {path[:80]!r}... has {len(segments)} segments; {_MAX_DEPTH} is the most"
        )
    for segment in segments:
        if not _SEGMENT.fullmatch(segment) or segment in {".", ".."}:
            raise InvalidScope(
                f"scope: {path!r} has the unusable segment {segment!r}; use 1 to 200 printable characters"
            )
    return stripped


def join_scope(parent: str, child: str) -> str:
    """``join_scope("app", "run-1") == "app/run-1"``; either side may be empty."""
    return f"{parent}/{child}" if parent and child else parent or child


@lru_cache(maxsize=16384)
def ancestors(path: str) -> tuple[str, ...]:
    """The scopes whose caps apply to a call in ``path``, outermost first, itself included."""
    if not path:
        return ("",)
    segments = path.split("/")
    chain = tuple("/".join(segments[: n + 1]) for n in range(len(segments)))
    return chain if segments[0] == SIMULATED else ("", *chain)


def is_within(path: str, scope: str) -> bool:
    """True if ``scope``'s caps apply to a call in ``path``."""
    if not scope:
        return path != SIMULATED and not path.startswith(SIMULATED + "/")
    return path == scope or path.startswith(scope + "/")


@dataclass(slots=True, eq=False)
class _Root:
    """Where a context's outermost scope hangs, per ledger: decided by the first meter that is used in it."""

    anchors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Context:
    root: _Root
    path: str
    caps: tuple[tuple[str, Cap], ...] = ()
    kinds: tuple[tuple[str, Kind], ...] = ()


_current: ContextVar[_Context | None] = ContextVar("earmark_scope", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call is made: what a hold needs to find its caps.

    Attributes:
        scopes: full paths; the first is the one the charge is reported under.
        caps: caps that came with the context, each with its full scope.
        kinds: which of the paths are a run's or an agent's own, for caps per run and per agent.
    """

    scopes: tuple[str, ...]
    caps: tuple[Cap, ...] = ()
    kinds: tuple[tuple[str, Kind], ...] = ()


class scope:  # noqa: N801 - reads as a statement: ``with scope("researcher", cap="0.60"):``
    """Everything called inside draws on this scope and on all around it.

    Args:
        name: one or more path segments, below the scope of the surrounding context.
        cap: dollars that may be spent in this scope, ever; None sets no cap of its own.
        per: a window for the cap (``day``, ``week``, ``month``, ``year``); None is for ever.
        tz: the time zone of the window.
        kind: ``agent`` (default), ``run`` or ``part``; caps per agent and per run look at it.

    Works as ``with`` and ``async with``; tasks started inside inherit it.

    Raises:
        InvalidScope, InvalidAmount, InvalidCap: the caller's mistake; nothing was entered.
    """

    def __init__(
        self,
        name: str,
        cap: object = None,
        *,
        per: str | None = None,
        tz: str = "UTC",
        kind: Kind = "agent",
    ) -> None:
        self._name = normal_scope(name)
        if not self._name:
            raise InvalidScope("scope: the name is empty; give it a name such as 'researcher'")
        self._kind: Kind = kind
        self._cap = None if cap is None else Cap(cap, per=per, tz=tz, scope=self._name)
        self._tokens: list[Token[_Context | None]] = []

    def __enter__(self) -> Self:
        outer = _current.get()
        root = outer.root if outer else _Root()
        path = join_scope(outer.path if outer else "", self._name)
        caps = outer.caps if outer else ()
        if self._cap is not None:
            caps = (*caps, (path, self._cap))
        kinds = (*(outer.kinds if outer else ()), (path, self._kind))
        self._tokens.append(_current.set(_Context(root, path, caps, kinds)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _current.reset(self._tokens.pop())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


def current_path() -> str:
    """The path of the surrounding ``scope`` blocks, relative to the meter's own scope; ``""`` if none."""
    context = _current.get()
    return context.path if context else ""


def place_of_call(base: str, ledger_id: int) -> Place:
    """Where a call is made now, by a meter whose own scope is ``base``.

    The first meter used inside an outermost ``scope`` block fixes where that block hangs. A meter with
    another base that is used inside it draws on both paths, so that nothing nested escapes.
    """
    context = _current.get()
    own: tuple[tuple[str, Kind], ...] = ((base, "run"),) if base else ()
    if context is None:
        return Place(scopes=(base,), kinds=own)
    anchor = context.root.anchors.setdefault(ledger_id, base)
    full = join_scope(anchor, context.path)
    scopes = (full,) if is_within(full, base) else (full, base)
    kinds = own if anchor == base or not anchor else (*own, (anchor, "run"))
    return Place(
        scopes=scopes,
        caps=tuple(_rebase(cap, join_scope(anchor, path)) for path, cap in context.caps),
        kinds=(*kinds, *((join_scope(anchor, path), kind) for path, kind in context.kinds)),
    )


@lru_cache(maxsize=16384)
def _rebase(cap: Cap, path: str) -> Cap:
    return cap.at_scope(path)
