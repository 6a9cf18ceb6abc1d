"""Owners: who made a hold, and is that process certainly gone?"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from budgets import owners
from budgets.owners import Owner, is_dead, this_process


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    """A process that does nothing until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def owner_of(pid: int) -> Owner:
    """The owner record that the process of this pid would make."""
    return replace(this_process(), pid=pid, started_ms=owners._life_of(pid) or 0)


def test_this_process_is_alive_and_each_record_is_its_own() -> None:
    """A process knows itself to be alive; two records of it have different ids."""
    first, second = this_process(), this_process()
    assert not is_dead(first)
    assert first.id != second.id
    assert (first.pid, first.started_ms) == (os.getpid(), second.started_ms)


def test_a_process_is_dead_once_it_ended_even_before_it_is_reaped(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """Alive while it runs, dead as a zombie, dead when it is gone."""
    owner = owner_of(sleeper.pid)
    assert not is_dead(owner)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner), "a zombie makes no calls"
    sleeper.communicate()
    assert is_dead(owner)


@pytest.mark.parametrize("shift_ms", [-60_000, -10, 10, 60_000])
def test_another_process_of_the_same_pid_is_not_the_owner(
    sleeper: subprocess.Popen[bytes], shift_ms: int
) -> None:
    """A pid that is used again by a process that started at another time does not keep a hold alive."""
    owner = owner_of(sleeper.pid)
    assert is_dead(replace(owner, started_ms=owner.started_ms + shift_ms))
    sleeper.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere start times are wall-clock times")
def test_a_clock_that_is_set_does_not_kill(sleeper: subprocess.Popen[bytes]) -> None:
    """Start times count from boot, so that setting the clock makes nobody look dead."""
    started = owner_of(sleeper.pid).started_ms
    uptime_ms = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]) * 1000
    assert 0 <= uptime_ms - started < 60_000
    sleeper.communicate()


@pytest.mark.parametrize(
    ("host", "dead"),
    [
        ("elsewhere#boot-ns", False),
        ("{name}#{boot}-othernamespace", False),
        ("{name}#otherboot-{ns}", True),
        ("{name}#", False),
        ("localhost#otherboot-1", False),
    ],
)
def test_only_what_is_certain_counts_as_dead(host: str, dead: bool) -> None:
    """Other hosts and containers can't be looked at; an earlier boot of this machine is certainly over."""
    own = this_process()
    name, _, marks = own.host.partition("#")
    boot, _, namespace = marks.partition("-")
    there = replace(own, host=host.format(name=name, boot=boot, ns=namespace), pid=2**22 + 5)
    assert is_dead(there) is dead
