"""Where runs are: their folders beside a ledger, and what a person means by an id, a folder, a file or ``last``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .failures import Mistake

#: Names of ``orchestrator.run_folder``, whose import would bring the whole SDK along.
RECORD = "run.json"
JOURNAL = "journal.jsonl"
#: What bulk jobs leave in their folders of results; it names run and ledger.
STATES = ("classify.json", "extract.json", "map.json")
LATEST = "last"

_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """A run's folder. ``record`` is empty where its ``run.json`` is missing or cut."""

    id: str
    folder: Path
    record: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A field of the record; empty if it is missing."""
        value = self.record.get(name)
        return "" if value is None else str(value)

    @property
    def outcome(self) -> str:
        """The outcome; a run that has not said one is under way, or was killed."""
        return self.text("outcome") or "not ended"

    @property
    def scope(self) -> str:
        """The run's scope."""
        return self.text("scope")

    @property
    def journal(self) -> Path:
        """The journal's file, which may be missing."""
        return self.folder / JOURNAL

    @property
    def ledger(self) -> Path | None:
        """The file of the ledger that it drew on; None if it is not there any more, or was in memory."""
        named = self.text("ledger")
        near = (Path(named) if named else None, self.folder.parent.parent / "ledger.db")
        return next((path for path in near if path is not None and path.is_file()), None)


def run_at(folder: Path) -> RunPlace:
    """The run of a folder."""
    return RunPlace(id=folder.name, folder=folder, record=read_record(folder / RECORD))


def runs_beside(ledger: Path) -> list[RunPlace]:
    """All runs whose folders lie beside a ledger, the latest first."""
    folder = ledger.parent / "runs"
    if not folder.is_dir():
        return []
    found = [
        run_at(each)
        for each in folder.iterdir()
        if each.is_dir() and ((each / RECORD).exists() or (each / JOURNAL).exists())
    ]
    return sorted(found, key=lambda run: (run.text("started"), run.id), reverse=True)


def read_record(path: Path) -> Mapping[str, Any]:
    """A file with one JSON object; empty if it is missing, cut or something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def named_run(runs: list[RunPlace], name: str, ledger: Path) -> RunPlace:
    """The run of an id, or of the beginning of one.

    Raises:
        Mistake: there is none, or there are several; names the latest.
    """
    matches = [run for run in runs if run.id == name] or [
        run for run in runs if name and run.id.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise Mistake(f"run {name}: {len(matches)} runs begin so; write more of the id")
    latest = ", ".join(run.id for run in runs[:_NAMES_SHOWN])
    there = f"the latest are {latest}" if latest else "there are no runs there at all"
    raise Mistake(
        f"run {name}: there is none beside {ledger}; {there} ('earmark runs list' shows what there is)"
    )


def find_run(name: str, ledger: Path) -> RunPlace | Path:
    """What a person means by a run.

    Args:
        name: ``last``, a run's folder, its journal, a folder of results of a bulk job, any other file (it is
            handed back), an id or the beginning of one.
        ledger: beside which ids are looked up.

    Raises:
        Mistake: it is none of these.
    """
    path = Path(name)
    if name == LATEST:
        runs = runs_beside(ledger)
        if not runs:
            raise Mistake(f"run last: there are no runs beside {ledger}; --ledger names another")
        return runs[0]
    if path.is_file():
        return run_at(path.parent) if path.name in {JOURNAL, RECORD} else path
    if path.is_dir():
        if (path / JOURNAL).exists() or (path / RECORD).exists():
            return run_at(path)
        for name_of_state in STATES:
            state = read_record(path / name_of_state)
            if state.get("run") and state.get("ledger"):
                there = Path(str(state["ledger"]))
                return named_run(runs_beside(there), str(state["run"]), there)
        raise Mistake(
            f"folder {path}: it holds no {JOURNAL}; name a run's folder, or a run by its id"
        )
    return named_run(runs_beside(ledger), name, ledger)
