"""The supervisor of one worker process: a small program between us and it, after which nothing is left.

Run as ``python -I -S supervisor.py ORDERS [ARGUMENT ...]``; it imports nothing of Earmark. It starts the program of
its orders in a session of its own, waits for it, and ends every process that came of it: when the program ends,
when it is told to (SIGTERM), when all of them together take too much memory, and when whoever started it is gone,
however that came about. Then it writes down how it ended (``ended``, beside its orders).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: Seconds between SIGTERM and SIGKILL, and how often death is looked for.
GRACE_S, TICK_S = 1.0, 0.2
#: Seconds between two looks at the memory.
LOOK_S = 0.5
#: Rounds of SIGKILL: a tree that forks faster than it is killed must not hold us here for ever.
_ROUNDS_MOST = 200
#: What a shell says of a program that is not there, or can't be run.
EXIT_NO_PROGRAM, EXIT_ORPHANED = 127, 143
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


def main(arguments: list[str]) -> int:
    """Do what the orders say; the exit code is the program's own."""
    orders = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    parent = int(orders["parent"])
    # In this order: from here on the death of the parent is seen, and then whether it was too late.
    woken = _wake_up_on_signals()
    _prctl(_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(
        OSError
    ):  # a session of its own: Ctrl-C in a terminal is our caller's matter
        os.setsid()
    if os.getppid() != parent:
        return EXIT_ORPHANED
    folder = Path(arguments[0]).parent
    # Before anything is started: whoever kills us from now on can be found out, and what came of us be ended.
    _write(folder / "pid", str(os.getpid()))
    child = _start(orders, arguments[1:])
    if child is None:
        (folder / "pid").unlink(missing_ok=True)  # nothing came of it
        return EXIT_NO_PROGRAM
    _let_go_of_pipes()
    fuse = Fuse(orders.get("memory_mb"))
    status, why = _wait(child, parent, woken, fuse)
    end_all(child)
    code = _code(status)
    _write(folder / "ended", json.dumps({"code": code, "why": why, "peak_mb": fuse.peak_mb}))
    return code


class Fuse:
    """Looks at the memory of the whole tree now and then.

    Args:
        most_mb: MiB of resident memory at most; None only looks.
    """

    def __init__(self, most_mb: int | None) -> None:
        self.peak_mb = 0
        self._most_mb = most_mb
        self._due = 0.0

    def is_blown(self) -> bool:
        """True once there is too much. Pages that processes share are counted for each."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + LOOK_S
        pages = sum(map(_resident_pages, _below(os.getpid())))
        now_mb = pages * os.sysconf("SC_PAGE_SIZE") >> 20
        self.peak_mb = max(self.peak_mb, now_mb)
        return self._most_mb is not None and now_mb > self._most_mb


def _resident_pages(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc", str(pid), "statm").read_text(encoding="ascii").split()[1])
    return 0


def _below(pid: int) -> list[int]:
    """Everyone below a process, by the kernel's own lists of children; nobody where it keeps none."""
    found: list[int] = []
    more = [pid]
    while more:
        above = more.pop()
        for path in Path("/proc", str(above), "task").glob("*/children"):
            with contextlib.suppress(OSError, ValueError):
                more += (below := [int(one) for one in path.read_text(encoding="ascii").split()])
                found += below
    return found


def _wake_up_on_signals() -> int:
    """Signals become readable bytes; returns where to read them."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _HEARD:
        signal.signal(number, lambda *_: None)
    return reader


def _prctl(option: int, value: int) -> None:
    """A setting of this process that only Linux knows; elsewhere the parent is looked for now and then."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(orders: dict[str, Any], further: list[str]) -> int | None:
    """Fork and execute; None if the program can't be run, with the reason on standard error."""
    command = [*orders["command"], *further]
    keep = set(orders["keep"])
    env = {name: value for name, value in os.environ.items() if name in keep}
    env.update(orders.get("env", {}))
    reader, writer = os.pipe()
    supervisor, child = os.getpid(), os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_HEARD, signal.SIGPIPE):  # Python ignores a broken pipe, others don't
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            _prctl(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:  # it died before we could hear of it
                os._exit(EXIT_ORPHANED)
            os.execvpe(command[0], command, env)  # noqa: S606 - the argument list is given as it is
        except OSError as error:
            os.write(writer, str(error.strerror).encode())
        finally:
            os._exit(EXIT_NO_PROGRAM)
    os.close(writer)  # the child's own closes when it executes
    with os.fdopen(reader, "rb") as pipe:
        fault = pipe.read().decode(errors="replace")
    if fault:
        os.waitpid(child, 0)
        sys.stderr.write(f"earmark: {command[0]} can't be started: {fault}\n")
        return None
    return child


def _write(path: Path, text: str) -> None:
    """Whole or not at all. The folder may be gone already, with whoever started us."""
    with contextlib.suppress(OSError):
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{text}\n", encoding="ascii")
        fresh.replace(path)


def _let_go_of_pipes() -> None:
    """The pipes belong to the program alone: when it ends, they end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def _wait(child: int, parent: int, woken: int, fuse: Fuse) -> tuple[int | None, str]:
    """Until the program has ended (its status), or must end (None), and in a word why."""
    while True:  # ends with the program, the parent, a signal, or the fuse
        ready = select.select([woken], [], [], TICK_S)[0]
        got = os.read(woken, 4096) if ready else b""
        done, status = _reaped(child)
        if done:
            return status, "ended"
        if os.getppid() != parent:
            return None, "orphaned"
        if set(got) & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            return None, "told"
        if fuse.is_blown():
            return None, "memory"


def _reaped(child: int) -> tuple[bool, int | None]:
    """Whether the program has ended; orphans of it that have ended are cleared away."""
    while True:  # one pass for each process that has ended
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True, None
        if pid == child:
            return True, status
        if pid == 0:
            return False, None


def end_all(child: int) -> None:
    """End everything that came of us: politely, then at once, until nothing is left."""
    _signal(_descendants(child), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and _left(child):
        time.sleep(0.02)
    for _ in range(_ROUNDS_MOST):
        left = _left(child)
        if not left:
            return
        # Stopped first, so that nobody forks while the list is worked through.
        _signal(left, signal.SIGSTOP)
        _signal(_descendants(child), signal.SIGKILL)
        time.sleep(0.01)


def _left(child: int) -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return _descendants(child)


def _descendants(child: int) -> list[int]:
    """Everyone below us, by the table of processes; where there is none, the program's own group."""
    parents: dict[int, int] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib is slow
    except OSError:
        return [-child] if _lives(-child) else []
    for name in names:
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
            fields = text[text.rfind(")") + 2 :].split()
            if fields[0] not in "ZX":
                parents[int(name)] = int(fields[1])
    found: set[int] = set()
    more = {os.getpid()}
    while more:
        more = {pid for pid, above in parents.items() if above in more} - found
        found |= more
    return sorted(found)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _code(status: int | None) -> int:
    """As a shell has it: 128 and the signal for a program that was killed."""
    if status is None:
        return EXIT_ORPHANED
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
