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


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that makes holds.

    Attributes:
        id: unique per process and ledger object.
        host: host name; the part behind ``#`` tells boots and pid namespaces apart.
        pid: process id.
        started_ms: start time of the process, milliseconds since 1970.
    """

    id: str
    host: str
    pid: int
    started_ms: int


@lru_cache(maxsize=1)
def _host() -> str:
    marks = []
    with contextlib.suppress(OSError):
        marks.append(
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        )
    with contextlib.suppress(OSError):
        marks.append(str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]"))
    return f"{socket.gethostname()}#{'-'.join(marks)}"


def _started_ms(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).create_time() * 1000)
    except psutil.NoSuchProcess:
        return None


def this_process() -> Owner:
    """The owner record of the calling process; a new id each time."""
    pid = os.getpid()
    return Owner(id=uuid.uuid4().hex[:12], host=_host(), pid=pid, started_ms=_started_ms(pid) or 0)


def is_dead(owner: Owner) -> bool:
    """True only if it is certain: same host and boot, and no such process any more.

    A process on another host can't be looked at; only a person can say that it is gone.
    """
    if owner.host != _host():
        return _same_machine_other_boot(owner.host)
    try:
        process = psutil.Process(owner.pid)
        # Start times are read in clock ticks (10 ms) against a boot time that may be nudged.
        if abs(int(process.create_time() * 1000) - owner.started_ms) > 2000:
            return True
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


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
