"""What the tests of workers share: workers whose program is a fake, and a look at what is alive of them."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from orchestrator.workers import AgentSdkWorker

FAKE = Path(__file__).with_name("fake_cli.py")
TAG = "EARMARK_TEST_TAG"
MODEL = "claude-haiku-5-5"


def program(folder: Path) -> Path:
    """The fake as an executable."""
    path = folder / "fake-claude"
    path.write_text(f"#!{sys.executable} -S\n" + FAKE.read_text(encoding="utf-8"), encoding="utf-8")
    path.chmod(0o755)
    return path


def worker(folder: Path, way: str, **fields: Any) -> AgentSdkWorker:
    """A worker whose program behaves in this way, and works in a folder of its own."""
    cwd = folder / "work"
    cwd.mkdir(exist_ok=True)
    env = {"FAKE": way, TAG: str(folder), **fields.pop("env", {})}
    given = {"name": "worker", "model": MODEL, "cwd": cwd, "cli_path": program(folder), **fields}
    return AgentSdkWorker(env=env, **given)


def alive(folder: Path) -> list[psutil.Process]:
    """Processes that came of workers of this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.environ().get(TAG) == str(folder)
            ):
                found.append(process)
    return found


def none_alive(folder: Path, *, within_s: float = 5.0) -> bool:
    """Whether all of them are gone in time."""
    deadline = time.monotonic() + within_s
    while alive(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
