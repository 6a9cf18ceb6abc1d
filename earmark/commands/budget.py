"""``earmark budget``: show, check, set and drop caps."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import (
    ConfigOption,
    JsonOption,
    LedgerOption,
    OpenLedger,
    ScopeOption,
    ZoneOption,
    ledger_to_read,
    ledger_to_write,
    settings_of,
)
from earmark.exits import Exit
from earmark.failures import Mistake

if TYPE_CHECKING:
    from budgets.caps import Cap
    from budgets.nest import Counts, Finding
    from budgets.settings import Level, Settings

    from .cap_rows import CapRow

#: Who set a cap, where this command did.
OWNER = "earmark budget set"

PeriodOption = Annotated[
    str,
    typer.Option(
        "--per", metavar="PERIOD", help="call, agent, session, day, week, month, year or ever."
    ),
]

app = typer.Typer(no_args_is_help=True, help="Show, check, set and drop caps.")


# ---- show ---------------------------------------------------------------------------------------------


@app.command()
def show(
    *,
    scope: ScopeOption = "",
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Every cap in force: how much of it is posted, held and in doubt, what is left, when it opens again."""
    from budgets.scopes import normal_scope
    from budgets.settings import levels_for

    from .cap_rows import cap_rows

    scope = normal_scope(scope)
    settings = settings_of(config)
    now = datetime.now(UTC)
    levels = levels_for(settings)
    with ledger_to_read(ledger) as opened:
        rows = cap_rows(opened.ledger, scope, now)
        if json:
            output.print_json(_show_json(opened, scope, now, rows, levels))
        else:
            _show_people(opened, scope, rows, settings, levels)


def _show_json(
    opened: OpenLedger, scope: str, now: datetime, rows: list[CapRow], levels: tuple[Level, ...]
) -> dict[str, Any]:
    from .cap_rows import cap_json

    whole, play = opened.ledger.balance(scope), opened.ledger.balance("simulated")
    return {
        "ledger": str(opened.path),
        "exists": opened.exists,
        "at": output.instant(now),
        "scope": scope,
        **output.money("posted", whole.posted_nanos),
        **output.money("held", whole.held_nanos),
        **output.money("in_doubt", whole.in_doubt_nanos),
        **output.money("remaining", whole.remaining_nanos),
        **output.money("cap", None if whole.cap is None else whole.cap.nanos),
        "simulated": {
            **output.money("posted", play.posted_nanos),
            **output.money("held", play.held_nanos),
            **output.money("in_doubt", play.in_doubt_nanos),
        },
        "caps": [row.as_json() for row in rows],
        "levels": [
            {
                **cap_json(level.cap),
                "moved": level.moved or None,
                **output.money("default", level.default_nanos),
            }
            for level in levels
        ],
    }


def _show_people(
    opened: OpenLedger,
    scope: str,
    rows: list[CapRow],
    settings: Settings,
    levels: tuple[Level, ...],
) -> None:
    balance = opened.ledger.balance(scope)
    output.say(
        f"{scope or 'everything'} (real money): posted {output.dollars(balance.posted_nanos)}, "
        f"held {output.dollars(balance.held_nanos)}, in doubt {output.dollars(balance.in_doubt_nanos)}"
    )
    for title, wanted in (("Caps in force", False), ("Caps of simulated runs (play money)", True)):
        chosen = [row for row in rows if row.simulated is wanted and not row.entry.fallback]
        if chosen:
            output.say(f"\n{title}")
            _print_rows(chosen)
    fallback = [row for row in rows if row.entry.fallback]
    if fallback:
        output.say("\nDefaults in this ledger: they bind only calls that no other cap covers")
        _print_rows(fallback)
    source = settings.file or "no earmark.toml, so the defaults"
    output.say(f"\nWhat a run that starts here sets ({source})")
    output.print_table(
        ("per", output.right("cap"), "set by", ""),
        [
            (
                "session" if level.cap.per == "run" else level.cap.per,
                output.dollars(level.cap.nanos),
                level.cap.owner,
                _moved(level),
            )
            for level in levels
        ],
    )


def _moved(level: Level) -> str:
    if not level.moved:
        return ""
    why = {"lifted": "a smaller level", "lowered": "a larger level"}[level.moved]
    return (
        f"default {output.dollars(level.default_nanos or 0)}, {level.moved} to {why} that was set"
    )


def _print_rows(rows: list[CapRow]) -> None:
    columns = (
        "scope",
        "per",
        "window",
        output.right("cap"),
        output.right("posted"),
        output.right("held"),
        output.right("in doubt"),
        output.right("remaining"),
        "used",
        "opens again",
        "set by",
    )
    output.print_table(
        columns,
        [
            (
                _subject(row),
                "session" if row.cap.per == "run" else row.cap.per or "ever",
                row.window.key if row.window else "",
                output.dollars(row.cap.nanos),
                output.dollars(row.sums.posted),
                output.dollars(row.sums.held),
                output.dollars(row.sums.in_doubt),
                output.dollars(row.remaining),
                output.bar(row.sums.total, row.cap.nanos) + (" shut" if row.latched else ""),
                _opens(row),
                row.cap.owner,
            )
            for row in rows
        ],
    )


def _subject(row: CapRow) -> str:
    scope = row.cap.scope or "everything"
    if row.cap.per in {"agent", "run"} and row.subjects:
        return f"{scope} (fullest of {row.subjects}: {row.subject})"
    return scope


def _opens(row: CapRow) -> str:
    if row.window is None or row.window.ends is None:
        return ""
    from budgets.windows import zone_of

    local = row.window.ends.astimezone(zone_of(row.cap.tz))
    return f"{local:%Y-%m-%d %H:%M} {row.cap.tz}"


# ---- check --------------------------------------------------------------------------------------------


@app.command()
def check(
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="Check this file alone, not the ledger's caps."
        ),
    ] = None,
    calls_per_session: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Calls that one session makes.")
    ] = None,
    agents_per_session: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Agents that one session starts.")
    ] = None,
    sessions_per_day: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sessions on one day.")
    ] = None,
    days_per_week: Annotated[
        int | None, typer.Option(min=1, max=7, metavar="N", help="Days in use; 7 if left out.")
    ] = None,
    days_per_month: Annotated[
        int | None, typer.Option(min=1, max=31, metavar="N", help="Days in use; 31 if left out.")
    ] = None,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Say where a nest of caps contradicts itself: twenty $5 sessions against a $45 day, say.

    Exits with 1 if it does, with 0 if not. Counts that are not given come from the file's plan table.
    """
    from budgets.nest import contradictions

    settings = settings_of(file or config)
    given = {
        "calls_per_session": calls_per_session,
        "agents_per_session": agents_per_session,
        "sessions_per_day": sessions_per_day,
        "days_per_week": days_per_week,
        "days_per_month": days_per_month,
    }
    counts = _counts(settings, given)
    caps = _caps_to_check(settings, None if file else ledger, with_ledger=file is None)
    findings = contradictions(caps, counts)
    broken = [finding for finding in findings if finding.contradicts]
    if json:
        output.print_json(_check_json(settings, caps, findings))
    else:
        _check_people(settings, caps, findings)
    return Exit.FAILED if broken else Exit.OK


def _counts(settings: Settings, given: dict[str, int | None]) -> Counts:
    from dataclasses import replace

    return replace(settings.counts, **{k: v for k, v in given.items() if v is not None})


def _caps_to_check(settings: Settings, ledger: Path | None, *, with_ledger: bool) -> list[Cap]:
    """The file's nest with its defaults; beside it what the ledger has of caps that are meant to stay."""
    from budgets.settings import caps_for

    nest = {cap.key: cap for cap in caps_for(settings)}
    # Play money has a nest of its own, which differs only where the file speaks of it.
    nest |= {cap.key: cap for cap in settings.caps}
    if not with_ledger:
        return list(nest.values())
    levels = {(cap.scope, cap.per): cap for cap in nest.values() if cap.owner == "default"}
    with ledger_to_read(ledger, quiet=True) as opened:
        for entry in opened.ledger.caps():
            cap = entry.cap
            stays = cap.per is not None or cap.owner == OWNER
            if entry.fallback or cap.owner == "default" or not stays:
                continue
            default = levels.get((cap.scope, cap.per))
            if default is not None:
                nest.pop(default.key, None)
            nest.setdefault(cap.key, cap)
    return list(nest.values())


def _check_json(settings: Settings, caps: list[Cap], findings: list[Finding]) -> dict[str, Any]:
    from .cap_rows import cap_json

    return {
        "ok": not any(finding.contradicts for finding in findings),
        "file": None if settings.file is None else str(settings.file),
        "findings": [
            {
                "kind": finding.kind,
                "contradicts": finding.contradicts,
                "message": finding.message,
                "caps": [cap_json(cap) for cap in finding.caps],
            }
            for finding in findings
        ],
        "caps": [cap_json(cap) for cap in caps],
    }


def _check_people(settings: Settings, caps: list[Cap], findings: list[Finding]) -> None:
    source = settings.file or "no earmark.toml: the defaults"
    for finding in findings:
        output.say(f"{'contradiction' if finding.contradicts else 'note'}: {finding.message}")
    count = sum(finding.contradicts for finding in findings)
    verdict = f"{count} contradictions" if count != 1 else "1 contradiction"
    output.say(f"{len(caps)} caps checked ({source}): {verdict if count else 'none contradicts'}")


# ---- set and drop -------------------------------------------------------------------------------------


@app.command("set")
def set_(
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="Dollars, such as 45 or 0.50.")],
    *,
    per: PeriodOption = "ever",
    scope: ScopeOption = "",
    tz: ZoneOption = None,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Set a cap in the ledger, for every process; a running one feels it at its next call.

    Raising a cap opens what was shut by it. Earlier caps stay in the ledger's history.
    """
    from budgets.caps import Cap
    from budgets.money import format_usd

    from .cap_rows import cap_json

    if per == "ever" and not scope:
        raise Mistake("a cap for ever on everything would never open again; give --per or --scope")
    zone = tz or settings_of(config).tz
    cap = Cap(amount, per=_period(per), scope=scope, tz=zone, owner=OWNER)
    with ledger_to_write(ledger, create=True) as opened:
        same = _same_period(opened, cap.scope, cap.per)
        opened.ledger.set_cap(cap)
        after = {each.key for each in _same_period(opened, cap.scope, cap.per)}
    before = next((each for each in same if each.key == cap.key), None)
    others = [each for each in same if each.key != cap.key and each.key in after]
    for other in others:
        output.remark(f"the cap of {other} applies as well; 'earmark budget drop' lifts it")
    if json:
        output.print_json(
            {
                "ledger": str(opened.path),
                "cap": cap_json(cap),
                **output.money("before", None if before is None else before.nanos),
                "beside": [cap_json(other) for other in others],
            }
        )
    else:
        was = "" if before is None else f" (was {format_usd(before.nanos)})"
        output.say(f"set: {cap}{was}, in {opened.path}")


@app.command()
def drop(
    *,
    per: PeriodOption = "ever",
    scope: ScopeOption = "",
    tz: ZoneOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Lift a cap of the ledger. Calls that no other cap covers then fall under the defaults."""
    from budgets.scopes import normal_scope

    from .cap_rows import cap_json

    scope = normal_scope(scope)
    with ledger_to_write(ledger) as opened:
        found = [
            cap for cap in _same_period(opened, scope, _period(per)) if tz is None or cap.tz == tz
        ]
        if not found:
            raise Mistake(
                f"there is no cap per {per} on {scope or 'everything'} in {opened.path}; "
                "'earmark budget show' lists them"
            )
        for cap in found:
            opened.ledger.drop_cap(cap)
    if json:
        output.print_json({"ledger": str(opened.path), "dropped": [cap_json(cap) for cap in found]})
        return
    for cap in found:
        output.say(f"dropped: {cap}, in {opened.path}")


def _period(per: str) -> str | None:
    """The period as a cap has it.

    Raises:
        InvalidCap: not a period.
    """
    from budgets.caps import Cap

    return None if per == "ever" else Cap("0", per=per).per


def _same_period(opened: OpenLedger, scope: str, per: str | None) -> list[Cap]:
    return [
        entry.cap
        for entry in opened.ledger.caps()
        if entry.cap.scope == scope and entry.cap.per == per and not entry.fallback
    ]
