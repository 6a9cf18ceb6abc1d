"""Owners of holds: which process made a hold, and is it still alive?

A process is named by host (with boot and pid namespace), pid and start time, since pids are used again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil

_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self" / "stat").exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that makes holds.

    Attributes:
        id: unique per process and ledger object.
        host: host name; the part behind ``#`` tells boots and pid namespaces apart.
        pid: process id.
        started_ms: start time of the process in milliseconds: since the boot where the system says so
            (Linux), which no clock can shift; else since 1970.
    """

    id: str
    host: str
    pid: int
    started_ms: int


#: Owns the holds of batches: they go on at the provider, whoever sent them. Never dead.
PROVIDER = Owner(id="provider", host="the provider", pid=0, started_ms=0)


@lru_cache(maxsize=1)
def _host() -> str:
    marks = []
    with contextlib.suppress(OSError):
        marks.append((_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8])
    with contextlib.suppress(OSError):
        marks.append(str((_PROC / "self/ns/pid").readlink()).strip("pid:[]"))
    return f"{socket.gethostname()}#{'-'.join(marks)}"


def this_process() -> Owner:
    """The owner record of the calling process; a new id each time."""
    pid = os.getpid()
    life = _life_of(pid)
    return Owner(id=uuid.uuid4().hex[:12], host=_host(), pid=pid, started_ms=life or 0)


def is_dead(owner: Owner) -> bool:
    """True only if it is certain: same host and boot, and no such process any more.

    A process on another host can't be looked at; only a person can say that it is gone.
    """
    if owner.id == PROVIDER.id:
        return False
    if owner.host != _host():
        return _same_machine_other_boot(owner.host)
    try:
        started_ms = _life_of(owner.pid)
    except psutil.AccessDenied:
        return False
    if started_ms is None:
        return not _hidden(owner.pid)
    # Where start times are read against a wall clock, that clock may be nudged meanwhile.
    return abs(started_ms - owner.started_ms) > (0 if _HAS_PROC else 2000)


def _life_of(pid: int) -> int | None:
    """When a process started, milliseconds; None if there is none, or only what is left of one (a zombie)."""
    if not _HAS_PROC:
        try:
            process = psutil.Process(pid)
            ended = process.status() == psutil.STATUS_ZOMBIE
            return None if ended else int(process.create_time() * 1000)
        except psutil.NoSuchProcess:
            return None
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything; behind it come the state and, 19 further on, the start.
    fields = stat[stat.rfind(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19]) * 1000 // os.sysconf("SC_CLK_TCK")


def _hidden(pid: int) -> bool:
    """True if a process of this pid is there all the same: /proc can be mounted to hide other users'."""
    if not _HAS_PROC:
        return False
    try:
        stat_is_hidden = not (_PROC / str(pid)).exists()
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return stat_is_hidden


def _same_machine_other_boot(host: str) -> bool:
    """The machine was started again since: nothing of an earlier boot can be alive."""
    name, _, marks = host.partition("#")
    own_name, _, own_marks = _host().partition("#")
    boot, own_boot = marks.partition("-")[0], own_marks.partition("-")[0]
    return (
        name == own_name and bool(boot and own_boot) and boot != own_boot and _is_machine_name(name)
    )


def _is_machine_name(name: str) -> bool:
    # "localhost" and friends are shared by different machines on one network drive.
    return name not in {"", "localhost", "localhost.localdomain"}
