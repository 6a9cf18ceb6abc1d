"""``earmark ledger holds``, ``resolve`` and ``adjust``: what is open, and saying what it really cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import (
    JsonOption,
    LedgerOption,
    OpenLedger,
    ScopeOption,
    ledger_to_read,
    ledger_to_write,
)
from earmark.failures import Mistake

if TYPE_CHECKING:
    from budgets.owners import Owner
    from budgets.records import Hold, Line

CostOption = Annotated[
    str | None,
    typer.Option(
        "--cost", metavar="AMOUNT", help="Dollars that it really cost.", show_default=False
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it stays in the ledger.")
]

#: The shortest beginning of a hold's id that may stand for it.
_PREFIX_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """An open hold, who made it, whether that process lives (None: not to be seen from here), and why."""

    hold: Hold
    owner: Owner | None
    alive: bool | None
    reason: str

    @property
    def state(self) -> str:
        """``held``, ``doubt``, or ``reserve``: held, but nothing was sent on it."""
        return "reserve" if self.hold.reserve is not None else self.hold.state


# ---- holds --------------------------------------------------------------------------------------------


def holds(
    *, scope: ScopeOption = "", ledger: LedgerOption = None, json: JsonOption = False
) -> None:
    """Open holds, oldest first: calls under way, reserves for closing calls, and calls in doubt with the reason."""
    now = datetime.now(UTC)
    with ledger_to_read(ledger) as opened:
        found = _open_holds(opened, scope)
    if json:
        document = {
            "ledger": str(opened.path),
            "exists": opened.exists,
            "holds": [_hold_json(each, now) for each in found],
            **output.money("held", _total(found, "held")),
            **output.money("in_doubt", _total(found, "doubt")),
        }
        output.print_json(document)
    else:
        _holds_people(found, now)


def _total(found: list[_Open], state: str) -> int:
    return sum(each.hold.nanos for each in found if each.hold.state == state)


def _open_holds(opened: OpenLedger, scope: str) -> list[_Open]:
    from budgets.owners import is_dead, this_process
    from budgets.scopes import is_within, normal_scope

    scope, here = normal_scope(scope), this_process().host
    found = []
    with opened.ledger.reader() as reader:
        owners = reader.owners()
        for hold in reader.open_holds():
            if scope and not any(is_within(path, scope) for path in hold.scopes):
                continue
            owner = owners.get(hold.owner)
            alive: bool | None = None
            if owner is not None:
                alive = False if is_dead(owner) else (True if owner.host == here else None)
            reason = str(hold.note.get("reason", ""))
            if hold.state == "doubt":
                # The line that put it in doubt says why.
                last = list(reader.lines(hold=hold.id))[-1]
                reason = str(last.note.get("reason", ""))
            found.append(_Open(hold=hold, owner=owner, alive=alive, reason=reason))
    return found


def _hold_json(each: _Open, now: datetime) -> dict[str, Any]:
    hold, owner = each.hold, each.owner
    return {
        "id": hold.id,
        "state": each.state,
        "scope": hold.scope,
        "scopes": list(hold.scopes),
        "model": hold.model,
        "agent": hold.note.get("agent"),
        **output.money("amount", hold.nanos),
        "held_at": output.instant(hold.held_at),
        "age_s": int((now - hold.held_at).total_seconds()),
        "owner": None
        if owner is None
        else {"host": _host(owner), "pid": owner.pid, "alive": each.alive},
        "reason": each.reason,
    }


def _host(owner: Owner) -> str:
    return owner.host.partition("#")[0]


def _holds_people(found: list[_Open], now: datetime) -> None:
    from budgets.money import format_usd

    columns = ("hold", "state", output.right("amount"), output.right("age"), "scope", "model")
    output.print_table(
        (*columns, "owner", "reason"),
        [
            (
                each.hold.id,
                {"held": "under way", "doubt": "in doubt"}.get(each.state, each.state),
                format_usd(each.hold.nanos),
                _age(int((now - each.hold.held_at).total_seconds())),
                each.hold.scope,
                each.hold.model,
                _owner_text(each),
                each.reason,
            )
            for each in found
        ],
    )
    if any(each.hold.state == "doubt" for each in found):
        output.say(
            "In doubt counts in full until somebody says what it cost: "
            "earmark ledger resolve HOLD --cost AMOUNT, or --not-billed"
        )


def _owner_text(each: _Open) -> str:
    if each.owner is None:
        return "unknown"
    word = {True: "alive", False: "gone", None: "not visible from here"}[each.alive]
    return f"{_host(each.owner)} pid {each.owner.pid} ({word})"


def _age(seconds: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


# ---- resolve ------------------------------------------------------------------------------------------


def resolve(
    hold: Annotated[
        str | None, typer.Argument(metavar="HOLD", help="Its id, or the beginning of it.")
    ] = None,
    *,
    cost: CostOption = None,
    not_billed: Annotated[
        bool, typer.Option("--not-billed", help="The provider did not bill it.")
    ] = False,
    as_held: Annotated[
        bool, typer.Option("--as-held", help="Take the whole amount that was held as the cost.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every call in doubt, within --scope if given.")
    ] = False,
    scope: ScopeOption = "",
    owner_gone: Annotated[
        bool,
        typer.Option("--owner-gone", help="Its process, on another machine, is gone for certain."),
    ] = False,
    reason: ReasonOption = "",
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Say what a call in doubt really cost; the rest of its hold is free again."""
    nanos = _known_cost(cost, not_billed=not_billed, as_held=as_held)
    if (hold is None) is not every:
        raise Mistake("name one HOLD, or say --all; 'earmark ledger holds' lists what is in doubt")
    if every and cost is not None:
        raise Mistake("--cost is what one call cost; with --all say --as-held or --not-billed")
    if scope and not every:
        raise Mistake("--scope chooses calls for --all; leave it out beside one HOLD")
    with ledger_to_write(ledger) as opened:
        open_now = _open_holds(opened, scope)
        chosen = _in_doubt(open_now, every=every) if hold is None else [_named(open_now, hold)]
        lines = []
        for each in chosen:
            _doubt_if_gone(opened, each, owner_gone=owner_gone)
            amount = each.hold.nanos if nanos is None else nanos
            note = {"reason": reason} if reason else {}
            if each.state == "reserve":  # nothing was sent on it, whatever it is said to have cost
                lines.append(opened.ledger.void(each.hold.id, **note))
            else:
                lines.append(opened.ledger.resolve(each.hold.id, amount, **note))
    _print_corrections(opened, "resolved", lines, json=json)


def _known_cost(cost: str | None, *, not_billed: bool, as_held: bool) -> int | None:
    """Nano-dollars; None is as held."""
    from budgets.money import parse_usd

    if (cost is not None) + not_billed + as_held != 1:
        raise Mistake("say exactly one of --cost AMOUNT, --not-billed and --as-held")
    if as_held:
        return None
    return 0 if cost is None else parse_usd(cost, what="--cost")


def _in_doubt(found: list[_Open], *, every: bool) -> list[_Open]:
    return [each for each in found if every and each.hold.state == "doubt"]


def _named(found: list[_Open], name: str) -> _Open:
    matches = [each for each in found if each.hold.id == name] or [
        each for each in found if len(name) >= _PREFIX_MIN and each.hold.id.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise Mistake(f"hold {name}: {len(matches)} open holds begin so; write more of the id")
    raise Mistake(f"hold {name}: no open hold has this id; 'earmark ledger holds' lists them")


def _doubt_if_gone(opened: OpenLedger, each: _Open, *, owner_gone: bool) -> None:
    """A call under way is resolved only if somebody says that its process is gone."""
    if each.hold.state == "doubt":
        return
    name = f"hold {each.hold.id}"
    if each.alive:
        what = "it is a reserve of" if each.state == "reserve" else "its call is still under way in"
        raise Mistake(f"{name}: {what} a process that lives here")
    if not owner_gone:
        raise Mistake(
            f"{name}: its process is on another machine ({_owner_text(each)}); "
            "if it is gone for certain, say --owner-gone"
        )
    if each.state != "reserve":
        opened.ledger.doubt(each.hold.id, reason="its owner was said to be gone")


# ---- adjust -------------------------------------------------------------------------------------------


def adjust(
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="The id of the hold.")],
    *,
    cost: Annotated[
        str, typer.Option("--cost", metavar="AMOUNT", help="Dollars that it really cost.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it stays in the ledger.")
    ],
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Correct what was posted for a hold, by a further line; the old one stays."""
    from budgets.money import parse_usd

    nanos = parse_usd(cost, what="--cost")
    if not reason.strip():
        raise Mistake("--reason: say why the amount is corrected; it stays in the ledger")
    with ledger_to_write(ledger) as opened:
        line = opened.ledger.adjust(hold, nanos, reason=reason)
    _print_corrections(opened, "corrected", [line], json=json)


def _print_corrections(opened: OpenLedger, word: str, lines: list[Line], *, json: bool) -> None:
    from budgets.money import format_usd

    if json:
        document = {
            "ledger": str(opened.path),
            word: [
                {
                    "hold": line.hold,
                    "kind": line.kind,
                    **output.money("posted", line.posted),
                    "overrun_nanos": line.note.get("overrun_nanos"),
                }
                for line in lines
            ],
            "count": len(lines),
            **output.money("posted", sum(line.posted for line in lines)),
        }
        output.print_json(document)
        return
    for line in lines:
        change = "changed by" if line.kind == "adjust" else "posted"
        output.say(f"{word}: hold {line.hold}, {change} {format_usd(line.posted)}")
    if not lines:
        output.say("nothing is in doubt")
