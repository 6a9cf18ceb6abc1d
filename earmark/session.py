"""The session of a command that makes one run: where it spends, under which caps, through which gate, and where to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from budgets.caps import Cap
from budgets.scopes import SIMULATED, join_scope
from budgets.settings import Settings, caps_for
from orchestrator.gate import Gate

from .failures import Mistake


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
