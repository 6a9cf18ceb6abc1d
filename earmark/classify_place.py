"""Where ``earmark classify`` keeps a run's results, and what an earlier run left there to go on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.settings import ledger_path
from orchestrator.run import new_run_id
from patterns.classify.results import CSV, JSONL

from .failures import Mistake

STATE = "classify.json"
_LEDGER_FILES = {"", "-wal", "-shm", "-journal", ".lock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is kept.

    Attributes:
        run: its id.
        out: the folder of its results.
        ledger: the ledger that it is paid from.
        cap: what an earlier start of this run said; None if there was none.
    """

    run: str
    out: Path
    ledger: Path
    cap: str | None = None


def new_place(folder: Path, out: Path | None, ledger: Path | None, *, dry_run: bool) -> Place:
    """A place for a new run.

    Raises:
        Mistake: ``out`` holds something else.
    """
    run = new_run_id("classify")
    if out is not None and not dry_run:
        _check_free(out)
    default = Path("classified") / f"{_name(folder)}-{run.removeprefix('classify-')}"
    return Place(run=run, out=out or default, ledger=ledger_path(ledger))


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise Mistake(f"--out {out}: it is a file, not a folder; name another")
    if (out / STATE).exists():
        raise Mistake(
            f"results of an earlier run are in {out}: add --resume to go on with it, or name another --out"
        )
    for name in (JSONL, CSV):
        if (out / name).exists():
            raise Mistake(f"--out {out}: there is a {name} of something else; name another folder")


def earlier_place(folder: Path, out: Path | None, ledger: Path | None, *, simulated: bool) -> Place:
    """The place of the run to go on with.

    Args:
        folder: the documents.
        out: the folder of its results; None takes the latest run over ``folder``.
        ledger: what ``--ledger`` says; the run's own ledger otherwise.
        simulated: whether ``--simulate`` is given.

    Raises:
        Mistake: there is none, it can't be read, or it was another one.
    """
    out = out or _latest(_name(folder))
    state = _read(out)
    if state["simulated"] != simulated:
        word = "simulated: add --simulate" if state["simulated"] else "real: leave --simulate out"
        raise Mistake(f"--resume: the run in {out} was {word}, or start a new one")
    if state["folder"] != str(folder.resolve()):
        raise Mistake(f"--resume: the run in {out} was over {state['folder']}; name that folder")
    paid_from = Path(state["ledger"])
    if ledger is not None and ledger_path(ledger).resolve() != paid_from:
        raise Mistake(f"--resume: the run in {out} was paid from {paid_from}; name that ledger")
    if not paid_from.exists():
        raise Mistake(
            f"--resume: the ledger that the run in {out} was paid from is gone ({paid_from}); "
            "put it back, or start a new run in another folder"
        )
    return Place(run=state["run"], out=out, ledger=paid_from, cap=state.get("cap"))


def write_state(place: Place, facts: Mapping[str, Any]) -> None:
    """Write down what ``earlier_place`` needs, with further facts for people."""
    record = {
        "run": place.run,
        **facts,
        "ledger": str(place.ledger.resolve()),
    }
    fresh = place.out / f"{STATE}.new"
    fresh.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(place.out / STATE)


def own_files(place: Place) -> Callable[[Path], bool]:
    """Tells the files that this program writes (results of any run, ledger, runs) from documents."""
    out, ledger = place.out.resolve(), place.ledger.resolve()
    runs = f"{ledger.parent / 'runs'}{os.sep}"
    names = {name + end for name in (STATE, JSONL, CSV) for end in ("", ".new")}

    def is_own(file: Path) -> bool:
        if file.name in names and (file.parent == out or (file.parent / STATE).exists()):
            return True
        path = str(file)
        if path.startswith(str(ledger)):
            return path.removeprefix(str(ledger)) in _LEDGER_FILES
        return path.startswith(runs)

    return is_own


def _name(folder: Path) -> str:
    return folder.resolve().name or "root"


def _latest(name: str) -> Path:
    found = sorted(
        Path("classified").glob(f"{name}-*/{STATE}"), key=lambda state: state.stat().st_mtime
    )
    if not found:
        raise Mistake(
            f"--resume: no earlier run of {name} is in {Path('classified')}; name its folder by --out"
        )
    return found[-1].parent


def _read(out: Path) -> dict[str, Any]:
    try:
        state = json.loads((out / STATE).read_text(encoding="utf-8"))
        checked = {name: state[name] for name in ("run", "simulated", "folder", "ledger")}
        if not all(isinstance(value, str | bool) for value in checked.values()):
            raise TypeError(STATE)
    except (FileNotFoundError, NotADirectoryError):
        raise Mistake(
            f"--resume: there is no run in {out}; leave --resume out to start one"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Mistake(
            f"--resume: {out / STATE} can't be read; start a new run in another folder"
        ) from None
    return {**state, **checked}
