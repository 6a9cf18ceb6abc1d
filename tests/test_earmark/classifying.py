"""What the tests of ``earmark classify`` share: documents, a server beside the program, and a proof."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budgets.ledger import Ledger

LABELS = "billing,bug,feature,account,other"
KEY = "sk-ant-test-0123456789-secret"
ROOT = Path(__file__).parents[2]
WORDS = ("invoice charge payment", "error crash wrong", "please add wish", "login password")


def write_documents(folder: Path, count: int, *, extra: str = "") -> None:
    """So many different tickets."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = f"Ticket {number}: {WORDS[number % 4]}. {extra}"
        (folder / f"t{number:04d}.txt").write_text(text, encoding="utf-8")


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of ``results.jsonl``."""
    return [json.loads(line) for line in (out / "results.jsonl").read_bytes().splitlines()]


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a program in a process of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    where = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY} if url else {}
    return {**kept, **where, "PYTHONPATH": str(ROOT), **more}


def command(folder: str | Path = "docs", *more: str) -> list[str]:
    """The command line, for ``subprocess``."""
    return [sys.executable, "-m", "earmark", *arguments(folder, *more)]


def arguments(folder: str | Path = "docs", *more: str, labels: str = LABELS) -> list[str]:
    """The command line after the program's name."""
    return ["classify", str(folder), "--labels", labels, "--out", "out", *more]


def start(
    where: Path, env: dict[str, str], *more: str, folder: str = "docs"
) -> subprocess.Popen[bytes]:
    """The program in a process of its own."""
    return subprocess.Popen(
        command(folder, *more),
        cwd=where,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@dataclass(kw_only=True)
class Proof:
    """What must be true of a run that has ended, whatever happened to it."""

    where: Path
    simulated: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)

    def check(self, summary: dict[str, Any] | None = None) -> Proof:
        """One row per path; rows, summary and ledger say the same; nothing is held."""
        self.rows = rows_of(self.where / "out")
        paths = [row["path"] for row in self.rows]
        assert len(paths) == len(set(paths))
        state = json.loads((self.where / "out" / "classify.json").read_text())
        with Ledger(self.where / ".earmark" / "ledger.db", fallback=()) as ledger:
            result, balance = ledger.check(), ledger.balance(state["scope"])
            assert result.findings == []
            assert result.overruns == []
            assert ledger.balance().held_nanos == 0
        assert sum(row["posted_nanos"] for row in self.rows) == balance.posted_nanos
        assert sum(row["in_doubt_nanos"] for row in self.rows) == balance.in_doubt_nanos
        with (self.where / "out" / "results.csv").open(encoding="utf-8-sig", newline="") as file:
            table = list(csv.DictReader(file))
        assert [line["path"].removeprefix("'") for line in table] == paths == sorted(paths)
        if summary is not None:
            assert summary["outcomes"] == self.outcomes
            assert summary["posted_nanos"] == balance.posted_nanos
            assert summary["in_doubt_nanos"] == balance.in_doubt_nanos
            assert summary["held_usd"] == "0.00"
            assert summary["run"] == state["run"]
        return self

    @property
    def outcomes(self) -> dict[str, int]:
        """How many rows ended how."""
        return dict(sorted(Counter(row["outcome"] for row in self.rows).items()))

    @property
    def posted(self) -> int:
        """Nano-dollars of all rows."""
        return sum(row["posted_nanos"] for row in self.rows)

    @property
    def in_doubt(self) -> int:
        """Nano-dollars of all rows that are in doubt."""
        return sum(row["in_doubt_nanos"] for row in self.rows)


def lines_of(text: str) -> Sequence[str]:
    """Lines that say something."""
    return [line for line in text.splitlines() if line.strip()]
