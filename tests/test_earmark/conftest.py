"""A working folder of its own for every test, a way to run a command in it, and a ledger with a past."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from budgets.caps import Cap
from budgets.ledger import Ledger
from budgets.money import parse_usd
from earmark.main import run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one document that it must be."""
        return json.loads(self.out)


class Program:
    """The program, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ran:
        self._capsys.readouterr()
        code = run(list(arguments))
        said = self._capsys.readouterr()
        return Ran(code=code, out=said.out, err=said.err)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with nothing in the environment that names another ledger."""
    for name in ("EARMARK_HOME", "EARMARK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def earmark(folder: Path, capsys: pytest.CaptureFixture[str]) -> Program:
    """Runs commands in the working folder."""
    return Program(capsys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Holds of a ledger by what became of them."""

    path: Path
    settled: str
    doubted: str
    play: str


@pytest.fixture
def past(folder: Path) -> Past:
    """A ledger at the usual place: one call settled, one in doubt, one of play money."""
    path = folder / ".earmark" / "ledger.db"
    caps = [
        Cap("10", per="day", tz="Europe/Berlin", owner="earmark.toml"),
        Cap("2", scope="app/run-1"),
        Cap("3", per="day", scope="simulated"),
    ]
    with Ledger(path, caps=caps) as ledger:

        def hold(amount: str, scope: str) -> str:
            request = ledger.request(
                parse_usd(amount), scope=scope, model="claude-haiku-5-5", note={"agent": "reader"}
            )
            return ledger.hold(request).id

        settled, doubted = hold("0.50", "app/run-1"), hold("0.25", "app/run-1")
        play = hold("1", "simulated/run-2")
        usage = {"input_tokens": 100, "output_tokens": 7}
        ledger.settle(settled, parse_usd("0.123456789"), usage=usage)
        ledger.doubt(doubted, reason="timeout after sending")
        ledger.settle(play, parse_usd("0.75"))
    return Past(path=path, settled=settled, doubted=doubted, play=play)
