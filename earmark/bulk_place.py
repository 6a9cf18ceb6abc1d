"""Where a bulk job keeps its results, and what an earlier run left there to go on with."""

from __future__ import annotations

import glob
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgets.settings import ledger_path
from orchestrator.run import new_run_id
from patterns.bulk.export import FORMATS
from patterns.bulk.results import ANSWERS, JSONL

from .failures import Mistake
from .output import remark

#: Each command, and the folder that its results go to by default.
PLACES = {"classify": "classified", "extract": "extracted", "map": "mapped"}
STATES = tuple(f"{command}.json" for command in PLACES)
_POINTER = "results.json"
_RESULTS = (JSONL, *(f"results.{form}" for form in FORMATS))
_LEDGER_FILES = {"", "-wal", "-shm", "-journal", ".lock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is kept.

    Attributes:
        run: its id.
        state: name of the file in ``out`` that says what it is.
        out: the folder of its results.
        ledger: the ledger that it is paid from.
        cap: what an earlier start of this run said; None if there was none.
    """

    run: str
    state: str
    out: Path
    ledger: Path
    cap: str | None = None

    @property
    def run_folder(self) -> Path:
        """Of the run's record, beside its ledger."""
        return self.ledger.resolve().parent / "runs" / self.run


def new_place(
    command: str, source: Path, out: Path | None, ledger: Path | None, *, dry_run: bool
) -> Place:
    """A place for a new run.

    Raises:
        Mistake: ``out`` holds something else.
    """
    run = new_run_id(command)
    if out is not None and not dry_run:
        _check_free(out)
    default = Path(PLACES[command]) / f"{_name(source)}-{run.removeprefix(f'{command}-')}"
    return Place(run=run, state=f"{command}.json", out=out or default, ledger=ledger_path(ledger))


def _check_free(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise Mistake(f"--out {out}: it is a file, not a folder; name another")
    if any((out / state).exists() for state in STATES):
        raise Mistake(
            f"results of an earlier run are in {out}: add --resume to go on with it, or name another --out"
        )
    for name in _RESULTS:
        # An empty one is of a run that was killed before it had sent anything.
        if (out / name).exists() and (out / name).stat().st_size:
            raise Mistake(f"--out {out}: there is a {name} of something else; name another folder")


def place_to_go_on(
    command: str,
    source: Path,
    out: Path | None,
    ledger: Path | None,
    *,
    simulated: bool,
    dry_run: bool,
    may_begin: bool,
) -> Place:
    """The place of the run to go on with; where ``out`` holds nothing yet, and that may be, of a new one.

    So a command that is repeated until it ends well can always say ``--resume``: one that was killed before it
    had made a run has paid for nothing.

    Args:
        command, source, out, ledger, simulated: as for ``earlier_place``.
        dry_run: nothing is sent.
        may_begin: whether a new run may begin.

    Raises:
        Mistake: as ``earlier_place``. Without ``out`` nothing begins: the run may lie in another working folder.
    """
    if may_begin and out is not None and _is_free(out):
        place = new_place(command, source, out, ledger, dry_run=dry_run)
        remark(f"--resume: there is no run in {out} yet, so this begins one ({place.run})")
        return place
    return earlier_place(command, source, out, ledger, simulated=simulated)


def _is_free(out: Path) -> bool:
    """Whether a new run can have it."""
    try:
        _check_free(out)
    except Mistake:
        return False
    return True


def earlier_place(
    command: str, source: Path, out: Path | None, ledger: Path | None, *, simulated: bool
) -> Place:
    """The place of the run to go on with.

    Args:
        command: ``classify``, ``extract`` or ``map``.
        source: the documents.
        out: the folder of its results; None takes the latest run over ``source``.
        ledger: what ``--ledger`` says; the run's own ledger otherwise.
        simulated: whether ``--simulate`` is given.

    Raises:
        Mistake: there is none, it can't be read, or it was another one.
    """
    out = out or _latest(command, _name(source))
    state = _read(out, f"{command}.json")
    if state["simulated"] != simulated:
        word = "simulated: add --simulate" if state["simulated"] else "real: leave --simulate out"
        raise Mistake(f"--resume: the run in {out} was {word}, or start a new one")
    if state["folder"] != str(source.resolve()):
        raise Mistake(f"--resume: the run in {out} was over {state['folder']}; name that")
    paid_from = Path(state["ledger"])
    if ledger is not None and ledger_path(ledger).resolve() != paid_from:
        raise Mistake(f"--resume: the run in {out} was paid from {paid_from}; name that ledger")
    if not paid_from.exists():
        raise Mistake(
            f"--resume: the ledger that the run in {out} was paid from is gone ({paid_from}); "
            "put it back, or start a new run in another folder"
        )
    return Place(
        run=state["run"],
        state=f"{command}.json",
        out=out,
        ledger=paid_from,
        cap=state.get("cap"),
    )


def write_state(place: Place, facts: Mapping[str, Any]) -> None:
    """Write down what ``earlier_place`` needs, with further facts for people."""
    record = {
        "run": place.run,
        **facts,
        "ledger": str(place.ledger.resolve()),
    }
    fresh = place.out / f"{place.state}.new"
    fresh.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(place.out / place.state)
    pointer = place.run_folder / _POINTER
    if pointer.parent.is_dir():  # so that the run's id is enough to find its results
        pointer.write_text(json.dumps({"out": str(place.out.resolve())}) + "\n", encoding="utf-8")


def own_files(place: Place) -> Callable[[Path], bool]:
    """Tells the files that this program writes (results of any run, ledger, runs) from documents."""
    out, ledger = place.out.resolve(), place.ledger.resolve()
    runs = f"{ledger.parent / 'runs'}{os.sep}"
    names = {name + end for name in (*STATES, ANSWERS, *_RESULTS) for end in ("", ".new")}

    def is_own(file: Path) -> bool:
        if file.name in names and (file.parent == out or _state_in(file.parent)):
            return True
        path = str(file)
        if path.startswith(str(ledger)):
            return path.removeprefix(str(ledger)) in _LEDGER_FILES
        return path.startswith(runs)

    return is_own


def find_state(run: str, ledger: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a run's results, and what its record says.

    Args:
        run: the folder itself, or the run's id or the beginning of it.
        ledger: the ledger beside which runs lie.

    Raises:
        Mistake: there is none, or several.
    """
    folder = Path(run)
    if (state := _state_in(folder)) is not None:
        return folder, _read(folder, state.name)
    found: dict[str, Path] = {}
    for out in _places_of_results(run, ledger):
        if (state := _state_in(out)) is not None:
            found.setdefault(_read(out, state.name)["run"], state)
    matches = {name: state for name, state in found.items() if name == run} or {
        name: state for name, state in found.items() if run and name.startswith(run)
    }
    if len(matches) > 1:
        raise Mistake(f"run {run}: {len(matches)} runs begin so; write more of the id")
    if not matches:
        raise Mistake(
            f"run {run}: no results of it are known here; name their folder (what --out said)"
        )
    (state,) = matches.values()
    return state.parent, _read(state.parent, state.name)


def go_on(again: Sequence[str], out: Path) -> str:
    """The command that goes on with a run."""
    return shlex.join(["earmark", *again, "--resume", "--out", str(out)])


def _places_of_results(run: str, ledger: Path) -> Iterator[Path]:
    for pointer in sorted((ledger.parent / "runs").glob(f"*/{_POINTER}")):
        if pointer.parent.name.startswith(run):
            try:
                yield Path(json.loads(pointer.read_text(encoding="utf-8"))["out"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
    for name in PLACES.values():
        yield from (path for path in sorted(Path(name).glob("*")) if path.is_dir())


def _state_in(folder: Path) -> Path | None:
    return next((folder / name for name in STATES if (folder / name).is_file()), None)


def _name(source: Path) -> str:
    return source.resolve().name or "root"


def _latest(command: str, name: str) -> Path:
    where = Path(PLACES[command])
    found = sorted(
        where.glob(f"{glob.escape(name)}-*/{command}.json"), key=lambda state: state.stat().st_mtime
    )
    if not found:
        raise Mistake(f"--resume: no earlier run of {name} is in {where}; name its folder by --out")
    return found[-1].parent


def _read(out: Path, name: str) -> dict[str, Any]:
    try:
        state = json.loads((out / name).read_text(encoding="utf-8"))
        checked = {key: state[key] for key in ("run", "simulated", "folder", "ledger")}
        if not all(isinstance(value, str | bool) for value in checked.values()):
            raise TypeError(name)
    except (FileNotFoundError, NotADirectoryError):
        raise Mistake(
            f"--resume: there is no run in {out} to go on with; name the folder of one, or an empty one to begin"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Mistake(
            f"--resume: {out / name} can't be read; start a new run in another folder"
        ) from None
    return {**state, **checked}
