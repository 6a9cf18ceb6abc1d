"""Launching: a worker's program below a supervisor, in a folder of its own, with a filtered environment."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .environment import OF_THE_SDK, names_but, values_of
from .processes import ATTEMPT, STARTED_BY, Tree, starter_is_dead, sweep, this_starter

#: Windows has no signals of this kind; there the program runs without a supervisor, and its tree is ended by us.
HAS_SUPERVISOR = os.name == "posix"
_PREFIX = "earmark-workers-"
_SUPERVISOR = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one program is started.

    Attributes:
        attempt: id of the attempt.
        folder: of this attempt, private; removed at its end.
        command: what to execute in place of the program.
        env: for a process that inherits ours: what to set in it (see ``full_env`` for one that doesn't).
        full_env: the whole environment.
        tree: its processes.
    """

    attempt: str
    folder: Path
    command: tuple[str, ...]
    env: Mapping[str, str]
    full_env: Mapping[str, str]
    tree: Tree

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def launch_of(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    inherit: frozenset[str],
    as_file: bool = False,
    memory_mb: int | None = None,
) -> Launch:
    """Prepare a start; nothing is started yet.

    Args:
        command: the program and its arguments.
        env: variables to set.
        inherit: names of ours that are passed on.
        as_file: the command must be one executable file, to which further arguments are given.
        memory_mb: resident memory of the whole tree, in MiB, above which it is ended.
    """
    attempt = secrets.token_hex(8)
    folder = home() / attempt
    folder.mkdir(mode=0o700)
    marks = {ATTEMPT: attempt, STARTED_BY: this_starter()}
    env = {**env, **marks}
    full = values_of(inherit) | env
    own = tuple(command)
    if HAS_SUPERVISOR:
        orders = folder / "orders.json"
        orders.write_text(
            json.dumps(
                {
                    "command": list(command),
                    "keep": sorted({*full, *OF_THE_SDK}),
                    "parent": os.getpid(),
                    "memory_mb": memory_mb,
                }
            ),
            encoding="utf-8",
        )
        own = (sys.executable, "-I", "-S", str(_SUPERVISOR), str(orders))
        if as_file:
            own = (str(_script(folder, own, keep={*full, *OF_THE_SDK})),)
    return Launch(
        attempt=attempt,
        folder=folder,
        command=own,
        env=env,
        full_env=full,
        tree=Tree(attempt, folder),
    )


def _script(folder: Path, command: Sequence[str], *, keep: set[str]) -> Path:
    """An executable that unsets what is not to be passed on, so that it is in no process below us."""
    lines = [
        "#!/bin/sh",
        *(f"unset {name}" for name in names_but(keep)),
        f'exec {shlex.join(command)} "$@"',
    ]
    path = folder / "claude"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o700)
    return path


# ---- where workers keep their things ------------------------------------------------------------------

_lock = threading.Lock()
_home: tuple[int, Path] | None = None


def home() -> Path:
    """This process's folder for its workers, private and removed at its end.

    What earlier processes left behind is removed when it is made: their processes, and their folders.
    """
    global _home  # noqa: PLW0603 - one per process
    with _lock:
        if _home is None or _home[0] != os.getpid():
            sweep()
            _remove_left_folders()
            made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
            (made / "owner").write_text(this_starter(), encoding="utf-8")
            _home = (os.getpid(), made)
            atexit.register(_remove, made, os.getpid())
        return _home[1]


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if starter_is_dead((folder / "owner").read_text(encoding="utf-8")):
                shutil.rmtree(folder, ignore_errors=True)
