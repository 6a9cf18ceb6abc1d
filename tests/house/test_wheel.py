"""The wheel: it holds the four packages and nothing else, and works from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .source import PACKAGES, ROOT, modules, name_of

WORK = """
import sys
import budgets, orchestrator, patterns, earmark.main
from budgets import default_book
from orchestrator.simulator import running_simulator
for package in (budgets, orchestrator, patterns, earmark):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
assert default_book().resolve("claude-haiku-5-5")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("earmark-*.whl"))) as archive:
        yield archive


def test_the_wheel_holds_the_packages_whole(wheel: zipfile.ZipFile) -> None:
    """Every module, every marker of types and the page of reports; tests, examples and benchmarks are not."""
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert {name_of(path) for path in modules()} <= names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    page = {f"earmark/report_html/page.{ending}" for ending in ("html.j2", "css", "js")}
    assert {name for name in names if not name.endswith((".py", "py.typed"))} == page


def test_the_wheel_carries_licence_and_program(wheel: zipfile.ZipFile) -> None:
    """The licence, the README and the program's entry are part of it."""
    meta = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}

    assert "LICENSE" in meta
    assert b"earmark = earmark.main:main" in wheel.read(meta["entry_points.txt"])
    assert b"# Earmark" in wheel.read(meta["METADATA"])


def test_the_wheel_works_from_an_empty_folder(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """What was installed is imported, runs, and answers on the command line, away from the repository."""
    place, empty = tmp_path / "installed", tmp_path / "empty"
    wheel.extractall(place)
    empty.mkdir()
    env = {**os.environ, "PYTHONPATH": str(place)}
    for command in (["-c", WORK, str(place)], ["-m", "earmark", "prices", "claude-haiku-5-5"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=empty, env=env, capture_output=True, text=True
        )

        assert done.returncode == 0, done.stderr

    assert list(empty.iterdir()) == []
