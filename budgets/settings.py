"""Settings: ``earmark.toml`` and the environment, and the caps that follow from them.

The file is looked for in the working folder, then in its parents up to the root of the git project or the
home folder (never above, where the file could be anybody's)::

    [caps]                       # the six levels; dollars as strings, left out: the default
    call = "2"                   # one HTTP request
    agent = "3"                  # one agent; no default
    session = "5"                # one run ("run" means the same)
    day = "25"
    week = "100"
    month = "300"
    year = "2000"
    tz = "Europe/Berlin"         # whose calendar days, weeks, months and years follow; left out: UTC

    [[cap]]                      # any number of further caps
    scope = "app/search"
    amount = "10"
    per = "day"                  # left out: for ever
    tz = "UTC"                   # left out: that of [caps]

    [plan]                       # what `earmark budget check` counts with
    sessions_per_day = 20
    days_per_week = 5            # left out: 7
    days_per_month = 22          # left out: 31
    calls_per_session = 50
    agents_per_session = 5

    [prices]
    file = "prices.toml"         # beside this file

    [model]
    default = "claude-haiku-5-5"

    [gate]
    width = 64
    requests_per_minute = 1000
    input_tokens_per_minute = 400000
    output_tokens_per_minute = 80000

``EARMARK_CONFIG`` names another file, ``EARMARK_HOME`` the folder of the ledger. Only this module reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .caps import Cap
from .defaults import DEFAULT_AMOUNTS
from .errors import InvalidInput, InvalidSettings
from .money import parse_usd
from .nest import NO_COUNTS, RANKS, Counts
from .scopes import SIMULATED, is_within, normal_scope
from .toml_fields import Fields, entries_of, read_toml
from .windows import zone_of

FILE_NAME = "earmark.toml"
#: Names of the levels in the file; ``session`` and ``run`` are the same level.
LEVELS = ("call", "agent", "session", "run", "day", "week", "month", "year")
_COUNT_MAX = 1_000_000_000
_TABLES = ("caps", "cap", "plan", "prices", "model", "gate")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """The ``[gate]`` table: what ``orchestrator.Gate`` takes; None leaves it to the gate."""

    width: int | None = None
    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an ``earmark.toml`` says; everything at its default where there is none.

    Attributes:
        file: the file that was read, None if there is none.
        levels: caps of ``[caps]``, on everything.
        caps: caps headed ``[[cap]]``.
        tz: the time zone of ``[caps]``.
        price_file: the user's price file.
        model: the model to use where none is named.
        gate: limits of concurrency and rate.
        counts: the ``[plan]`` table.
    """

    file: Path | None = None
    levels: tuple[Cap, ...] = ()
    caps: tuple[Cap, ...] = ()
    tz: str = "UTC"
    price_file: Path | None = None
    model: str | None = None
    gate: GateSettings = field(default_factory=GateSettings)
    counts: Counts = NO_COUNTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One of the six levels as it applies.

    Attributes:
        cap: the cap.
        moved: ``lifted`` or ``lowered`` where a default had to make room for what the user said.
        default_nanos: the documented default, None for the level that has none (per agent).
    """

    cap: Cap
    moved: Literal["", "lifted", "lowered"] = ""
    default_nanos: int | None = None


# ---- which caps apply ---------------------------------------------------------------------------------


def levels_for(
    settings: Settings,
    *,
    scope: str = "",
    session_cap: object = None,
    session_scope: str | None = None,
    call_cap: object = None,
    owner: str = "--cap",
) -> tuple[Level, ...]:
    """The levels that apply, smallest first: what was said, and the documented defaults for the rest.

    A default never contradicts what the user said: a default below a smaller level that somebody set is
    lifted to it (``--cap 50`` lifts the default day of $25 to $50), and a default above a larger level that
    somebody set is lowered to it.

    Args:
        settings: the file.
        scope: where the levels go: ``""``, or ``simulated`` for play money.
        session_cap, call_cap: dollars that were given for this run; they beat the file.
        session_scope: the run's own scope: its cap is then set on that very scope, so that it neither
            touches other runs nor outlives this one; None sets it per run on ``scope``.
        owner: who gave ``session_cap`` and ``call_cap``, for messages.

    Raises:
        InvalidAmount, InvalidScope: the caller's mistake.
    """
    said: dict[str, Cap] = {str(cap.per): cap.at_scope(scope) for cap in settings.levels}
    for per, amount in (("run", session_cap), ("call", call_cap)):
        if amount is not None:
            said[per] = Cap(amount, per=per, scope=scope, owner=owner)
    levels = []
    for per in sorted({*said, *DEFAULT_AMOUNTS}, key=RANKS.__getitem__):
        text = DEFAULT_AMOUNTS.get(per)
        default = None if text is None else parse_usd(text)
        cap, moved = said.get(per), ""
        if cap is None:
            assert default is not None, per
            nanos, moved = _make_room(per, default, said)
            cap = Cap.from_nanos(
                nanos, per=per, scope=scope, tz=_zone(per, settings), owner="default"
            )
        if per == "run" and session_scope is not None:
            cap = Cap.from_nanos(
                cap.nanos, per=None, scope=normal_scope(session_scope), tz="UTC", owner=cap.owner
            )
        levels.append(Level(cap=cap, moved=moved, default_nanos=default))  # type: ignore[arg-type]
    return tuple(levels)


def caps_for(
    settings: Settings,
    *,
    scope: str = "",
    session_cap: object = None,
    session_scope: str | None = None,
    call_cap: object = None,
    owner: str = "--cap",
) -> tuple[Cap, ...]:
    """The caps to set for a run: the levels of ``levels_for`` and the file's own ``[[cap]]`` entries.

    Caps on play money (scope ``simulated`` and below) apply to simulated runs only, all others to real
    ones only. Arguments and errors are those of ``levels_for``.
    """
    levels = levels_for(
        settings,
        scope=scope,
        session_cap=session_cap,
        session_scope=session_scope,
        call_cap=call_cap,
        owner=owner,
    )
    simulated = is_within(scope, SIMULATED)
    further = (cap for cap in settings.caps if is_within(cap.scope, SIMULATED) == simulated)
    return (*(level.cap for level in levels), *further)


def _make_room(per: str, default: int, said: Mapping[str, Cap]) -> tuple[int, str]:
    """The default of a level between the levels that somebody set."""
    inner = [cap.nanos for other, cap in said.items() if RANKS[other] < RANKS[per]]
    outer = [cap.nanos for other, cap in said.items() if RANKS[other] > RANKS[per]]
    nanos = min([max([default, *inner]), *outer])
    if nanos == default:
        return default, ""
    return nanos, "lifted" if nanos > default else "lowered"


def _zone(per: str, settings: Settings) -> str:
    return settings.tz if per in {"day", "week", "month", "year"} else "UTC"


# ---- where things are ---------------------------------------------------------------------------------


def ledger_path(
    given: Path | None = None,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Path:
    """The ledger's file: the one given, ``$EARMARK_HOME/ledger.db``, or ``.earmark/ledger.db``.

    Args:
        given: what ``--ledger`` says.
        folder: the working folder; None is the process's.
        variables: the environment; None is the process's.
    """
    if given is not None:
        return given.expanduser()
    home = (os.environ if variables is None else variables).get("EARMARK_HOME")
    if home:
        return Path(home).expanduser() / "ledger.db"
    return (Path() if folder is None else folder) / ".earmark" / "ledger.db"


def load_settings(
    given: Path | None = None,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Settings:
    """Find and read the settings: the file given, ``$EARMARK_CONFIG``, or the nearest ``earmark.toml``.

    Args:
        given: what ``--config`` says.
        folder: the working folder; None is the process's.
        variables: the environment; None is the process's.

    Raises:
        InvalidSettings: not readable, not TOML, or something in it can't be used; names file and key.
    """
    named = (os.environ if variables is None else variables).get("EARMARK_CONFIG")
    if given is None and named:
        given = Path(named)
    path = given.expanduser() if given is not None else find_settings(folder or Path.cwd())
    return Settings() if path is None else read_settings(path)


def find_settings(folder: Path, *, home: Path | None = None) -> Path | None:
    """The nearest ``earmark.toml`` of a folder, None if there is none.

    Args:
        folder: where to begin.
        home: the highest folder to look in besides a git root; None is the user's home.
    """
    start = folder.resolve()
    chain = [start, *start.parents]
    top = next((n for n, each in enumerate(chain) if _is_top(each, home)), 0)
    return next(
        (path for each in chain[: top + 1] if (path := each / FILE_NAME).is_file()),
        None,
    )


def _is_top(folder: Path, home: Path | None) -> bool:
    try:
        return (folder / ".git").exists() or folder == (home or Path.home()).resolve()
    except (OSError, RuntimeError):  # not allowed to look, or a user without a home
        return False


# ---- the file -----------------------------------------------------------------------------------------


def read_settings(path: Path) -> Settings:
    """Read an ``earmark.toml``.

    Raises:
        InvalidSettings: not readable, not TOML, or something in it can't be used; names file and key.
    """
    data = read_toml(path, what="settings", error=InvalidSettings)
    fields = Fields(where=str(path), table=data, error=InvalidSettings)
    fields.only(_TABLES)
    caps = fields.sub("caps", (*LEVELS, "tz"))
    tz = "UTC" if caps is None else _tz(caps, "UTC")
    levels = () if caps is None else _levels(caps, tz, path.name)
    prices = fields.sub("prices", {"file"})
    model = fields.sub("model", {"default"})
    return Settings(
        file=path,
        levels=levels,
        caps=_further(fields, tz, path.name, levels),
        tz=tz,
        price_file=None if prices is None else path.parent / prices.text("file"),
        model=None if model is None else model.text("default"),
        gate=_gate(fields),
        counts=_counts(fields),
    )


def _levels(fields: Fields, tz: str, owner: str) -> tuple[Cap, ...]:
    if "session" in fields.table and "run" in fields.table:
        fields.refuse("run", "means the same as session; write one of them")
    return tuple(
        _cap(fields, level, per=level, tz=tz, owner=owner)
        for level in LEVELS
        if level in fields.table
    )


def _further(fields: Fields, tz: str, owner: str, levels: tuple[Cap, ...]) -> tuple[Cap, ...]:
    if "cap" not in fields.table:
        return ()
    caps: list[Cap] = []
    taken = {cap.key: "[caps]" for cap in levels}
    entries = entries_of(fields.table["cap"], where=fields.where, heading="cap", error=fields.error)
    for number, entry in enumerate(entries, start=1):
        entry.only({"scope", "amount", "per", "tz"})
        if "amount" not in entry.table:
            entry.refuse("amount", "is missing: dollars as a string, such as '10'")
        per = entry.text("per") if "per" in entry.table else None
        if per is not None and per not in LEVELS:
            entry.refuse(
                "per", f"{per!r} is not a period; use one of {', '.join(LEVELS)}, or none for ever"
            )
        cap = _cap(entry, "amount", per=per, tz=_tz(entry, tz), owner=owner)
        cap = cap.at_scope(_scope(entry))
        if cap.key in taken:
            entry.refuse("amount", f"{taken[cap.key]} sets a cap of this scope and period already")
        taken[cap.key] = f"[[cap]] number {number}"
        caps.append(cap)
    return tuple(caps)


def _cap(fields: Fields, key: str, *, per: str | None, tz: str, owner: str) -> Cap:
    try:
        return Cap(fields.table[key], per=per, tz=tz, owner=owner)
    except InvalidInput as error:
        # The cap names itself in front; here the file and the key do.
        fields.refuse(key, str(error).partition(": ")[2])


def _scope(fields: Fields) -> str:
    try:
        return normal_scope(fields.table.get("scope", ""))  # type: ignore[arg-type]
    except InvalidInput as error:
        fields.refuse("scope", str(error).partition(": ")[2])


def _tz(fields: Fields, default: str) -> str:
    name = fields.text("tz", default=default)
    try:
        zone_of(name)
    except InvalidInput as error:
        fields.refuse("tz", str(error))
    return name


def _numbers(fields: Fields, heading: str, names: tuple[str, ...]) -> dict[str, int]:
    inner = fields.sub(heading, names)
    if inner is None:
        return {}
    return {name: inner.count(name, least=1, most=_COUNT_MAX) for name in inner.table}


def _gate(fields: Fields) -> GateSettings:
    return GateSettings(**_numbers(fields, "gate", tuple(GateSettings.__dataclass_fields__)))


def _counts(fields: Fields) -> Counts:
    return Counts(**_numbers(fields, "plan", tuple(Counts.__dataclass_fields__)))
