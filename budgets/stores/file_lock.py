"""Taking turns on a ledger file between processes, fairly; and refusing drives where turns can't be taken.

SQLite's busy handler polls, and at saturation one process can win thousands of times in a row while
another waits for seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from budgets.errors import LedgerUnavailable

from .protocol import StoreBusy

try:
    import fcntl

    _HAS_FLOCK = True
except ImportError:  # Windows: SQLite's own locking takes the turns
    _HAS_FLOCK = False

_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smbfs",
        "smb3",
        "fuse.sshfs",
        "afpfs",
        "9p",
        "ceph",
        "glusterfs",
    }
)


class Turnstile:
    """Where processes queue for the write lock of a ledger file, one in front of it at a time.

    Whoever is through holds the turnstile only until it has SQLite's write lock. A process that has just
    written and wants to write again must queue like everybody else, so that none is starved.

    Args:
        path: the lock file; made when needed and left behind.
        timeout_s: how long to wait before giving up.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) if _HAS_FLOCK else -1

    @contextmanager
    def passing(self, *, wait: bool = True) -> Iterator[None]:
        """Go through; ``wait=False`` gives up at once if somebody stands there.

        Raises:
            StoreBusy: somebody does.
            LedgerUnavailable: others have kept it for too long.
        """
        if self._fd < 0:
            yield
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise StoreBusy from None
            self._wait()
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _wait(self) -> None:
        # Polled, since a blocking flock can't be given up; turns are shorter than the pauses.
        deadline = time.monotonic() + self._timeout_s
        pause = 0.0002
        while time.monotonic() < deadline:
            time.sleep(pause)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pause = min(pause * 1.3, 0.002)
            else:
                return
        raise LedgerUnavailable(
            f"ledger {str(self._path).removesuffix('.lock')}: other processes have kept it for "
            f"{self._timeout_s:g} s; try again, or stop the process that is stuck"
        )

    def close(self) -> None:
        """Release the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def refuse_network_drive(path: Path, drives: Iterable[tuple[str, str]] | None = None) -> None:
    """Write-ahead logging needs shared memory, which no network drive has.

    Args:
        path: of the file.
        drives: where each is mounted, and its file system; None takes those of this machine.

    Raises:
        LedgerUnavailable: the file would lie on such a drive.
    """
    if drives is None:
        drives = [(one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True)]
    folder = str(path.parent.resolve())
    best = ("", "")
    for where, kind in drives:
        mount = where.rstrip("/")
        if (folder == mount or folder.startswith(mount + "/")) and len(mount) >= len(best[0]):
            best = (mount, kind.lower())
    if best[1] in _NETWORK:
        raise LedgerUnavailable(
            f"ledger {path}: {best[0]} is a network drive ({best[1]}), where a money file is not safe; "
            "name a file on a local disk"
        )
