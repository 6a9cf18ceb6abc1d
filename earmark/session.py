"""The session of a command that makes one run: where it spends, under which caps, and what all say of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.money import format_usd
from budgets.prices import PriceBook
from budgets.scopes import SIMULATED, join_scope
from budgets.settings import Settings, caps_for
from orchestrator.gate import Gate
from orchestrator.run import Run

from .failures import Mistake
from .output import dollars, money


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of a command.

    Attributes:
        command: its name, and the run's.
        run: the run's id.
        simulate: it spends play money.
        settings: of the command line.
        amount: its own cap, as it was given; None takes what the settings say.
    """

    command: str
    run: str
    simulate: bool
    settings: Settings
    amount: str | None

    @property
    def top(self) -> str:
        """What the run's scope hangs below."""
        return SIMULATED if self.simulate else ""

    @property
    def scope(self) -> str:
        """The run's own scope."""
        return join_scope(self.top, f"{self.command}/{self.run}")

    @property
    def caps(self) -> tuple[Cap, ...]:
        """All caps to set for the run.

        Raises:
            InvalidAmount, InvalidCap: what was given can't be used.
        """
        return caps_for(
            self.settings, scope=self.top, session_cap=self.amount, session_scope=self.scope
        )

    @property
    def cap(self) -> Cap:
        """The run's own."""
        return next(cap for cap in self.caps if cap.scope == self.scope)

    def run_on(
        self,
        ledger: Ledger,
        *,
        prices: PriceBook,
        client: Mapping[str, Any],
        width: int | None = None,
        default_width: int = 16,
        **more: Any,
    ) -> Run:
        """The run.

        Args:
            ledger: that it is paid from.
            prices, client, more: as for ``Run``.
            width, default_width: of its gate, as an option names it, and where nothing does.
        """
        return Run(
            self.command,
            id=self.run,
            scope=self.top,
            caps=self.caps,
            ledger=ledger,
            gate=gate_of(self.settings, width=width, default=default_width),
            prices=prices,
            client=dict(client),
            **more,
        )

    def head(self, ledger: Path) -> dict[str, Any]:
        """What every summary begins with: which run it is, and what it may cost."""
        return {
            "run": self.run,
            "command": self.command,
            "simulated": self.simulate,
            "scope": self.scope,
            "ledger": str(ledger),
            **money("cap", self.cap.nanos),
        }


def figures_of(run: Run | None) -> dict[str, Any]:
    """What every summary says of a run's money; without a run, that there is none."""
    balance = None if run is None else run.balance
    return {
        **money("posted", balance.posted_nanos if balance else 0),
        **money("held", balance.held_nanos if balance else 0),
        **money("in_doubt", balance.in_doubt_nanos if balance else 0),
        "stopped": None if run is None else run.stopped,
        "pid": os.getpid(),
    }


def spent(summary: Mapping[str, Any]) -> str:
    """The money of a summary for people: ``$0.12 of $4.00 posted, $0.01 in doubt``."""
    doubt = int(summary["in_doubt_nanos"])
    doubted = f", {format_usd(doubt)} in doubt" if doubt else ""
    return f"{dollars(summary['posted_nanos'])} of {dollars(summary['cap_nanos'])} posted{doubted}"


def gate_of(settings: Settings, *, width: int | None, default: int) -> Gate:
    """The gate that the settings ask for.

    Args:
        settings: of the command line.
        width: as an option names it.
        default: where neither says.
    """
    said = settings.gate
    return Gate(
        width=width or said.width or default,
        requests_per_minute=said.requests_per_minute,
        input_tokens_per_minute=said.input_tokens_per_minute,
        output_tokens_per_minute=said.output_tokens_per_minute,
    )


def leave(out: Path, files: Mapping[str, str]) -> None:
    """Write the files that a command leaves; each is there whole, or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        part = out / f".{name}.part"
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(out / name)


def check_free(out: Path, names: Iterable[str]) -> None:
    """Check that a folder can take the files that a command leaves.

    Raises:
        Mistake: it is a file, or one of them is there.
    """
    if out.exists() and not out.is_dir():
        raise Mistake(f"--out {out}: it is a file, not a folder; name another")
    for name in names:
        if (out / name).exists():
            raise Mistake(f"--out {out}: there is a {name} already; name another folder")
