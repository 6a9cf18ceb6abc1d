"""Documents can't go stale: the map is the tree, blocks run, commands exist, numbers are those of the code."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from budgets.defaults import DEFAULT_AMOUNTS
from budgets.settings import read_settings
from earmark.exits import MEANINGS
from earmark.main import COMMANDS, load, run
from orchestrator.simulator import SimulatorThread, running_simulator

from .source import ROOT, blocks, modules, name_of, text, tree

README = ROOT / "README.md"
CLI = ROOT / "docs" / "cli.md"
PAGES = [
    ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
]


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorThread]:
    """A stand-in for the API."""
    with running_simulator() as running:
        yield running


def numbered(document: Path, language: str) -> list[object]:
    return [
        pytest.param(block, id=f"{document.name}-{number}")
        for number, block in enumerate(blocks(document, language), start=1)
    ]


@pytest.mark.parametrize("block", numbered(README, "python"))
def test_python_of_the_readme_runs(block: str, simulator: SimulatorThread, tmp_path: Path) -> None:
    """Every Python block of the README runs by itself, as it stands, against the stand-in."""
    env = {
        **os.environ,
        "ANTHROPIC_BASE_URL": simulator.url,
        "ANTHROPIC_API_KEY": "simulated",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def commands_of(document: Path) -> list[str]:
    lines = "\n".join(blocks(document, "bash")).replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in line.partition("#")[0].split("&&")]
    found = [re.sub(r"^\S*earmark ", "earmark ", p) for p in parts if re.match(r"\S*earmark ", p)]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", commands_of(README))
def test_commands_of_the_readme_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every ``earmark`` command in the README is one, with options that it knows."""
    words = shlex.split(command)[1:]

    assert run([*words, "--help"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("block", [b for page in PAGES for b in numbered(page, "bash")])
def test_shell_blocks_parse(block: str) -> None:
    """Every shell block can be read by a shell."""
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", numbered(README, "toml"))
def test_settings_of_the_readme_can_be_read(block: str, tmp_path: Path) -> None:
    """The ``earmark.toml`` of the README is one, and shows the defaults as they are."""
    file = tmp_path / "earmark.toml"
    file.write_text(block, encoding="utf-8")
    read_settings(file)
    caps = tomllib.loads(block)["caps"]

    assert {
        ("run" if k == "session" else k): v for k, v in caps.items() if k != "tz"
    } == DEFAULT_AMOUNTS


def test_what_ci_runs_is_what_the_readme_says() -> None:
    """The test command of the README and that of ``.ci/run`` are the same."""
    readme, script = text(README), text(ROOT / ".ci" / "run")
    install = '.venv/bin/pip install -q -e ".[dev]"'
    tests = ".venv/bin/pytest -q -n 2 --dist loadfile"

    assert f"{install} && {tests}" in readme
    assert install in script
    assert tests in script


@pytest.mark.parametrize("document", [README, CLI], ids=lambda path: path.name)
def test_exit_codes_are_those_of_the_program(document: Path) -> None:
    """Every exit code is in the documents, and no other."""
    rows = re.findall(r"^\| (\d+) \|", text(document), flags=re.MULTILINE)

    assert rows == [str(code.value) for code in MEANINGS]


def _commands() -> list[str]:
    found = []
    for name in COMMANDS:
        inner = getattr(load(name), "commands", None)
        found += [f"earmark {name} {verb}" for verb in inner] if inner else [f"earmark {name}"]
    return found


@pytest.mark.parametrize("command", _commands())
def test_every_command_is_documented(command: str) -> None:
    """Every command of the program has its place in docs/cli.md."""
    assert command in text(CLI)


def rooms() -> dict[str, str]:
    """What ARCHITECTURE.md says of each file and folder: ``path`` in the map to its line."""
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in blocks(ROOT / "ARCHITECTURE.md", "text")[0].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, what = line.strip().partition(" ")
        folders[depth:] = [name]
        found["".join(folders)] = what.strip()
    return found


def test_the_map_is_the_tree() -> None:
    """ARCHITECTURE.md has a line for every module and every package, and none for what is not there."""
    files = {name_of(p) for p in modules() if p.name not in {"__init__.py", "__main__.py"}}
    folders = {f"{name_of(path.parent)}/" for path in modules() if path.name == "__init__.py"}
    said = rooms()

    assert set(said) == files | folders, "draw it again: python scripts/map.py"
    assert [name for name, what in said.items() if not what] == []


def test_links_lead_somewhere() -> None:
    """Every relative link of the documents names a file that exists."""
    dead = [
        f"{page.name}: {target}"
        for page in [*PAGES, CLI, ROOT / "examples" / "README.md"]
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text(page))
        if not (page.parent / target).exists()
    ]

    assert dead == []


def test_contracts_name_every_room() -> None:
    """Rooms that pyproject.toml orders exist: a renamed one does not fall out of the law unseen."""
    settings = tomllib.loads(text(ROOT / "pyproject.toml"))
    missing = [
        f"{container}.{room}"
        for contract in settings["tool"]["importlinter"]["contracts"]
        for container in contract.get("containers", ())
        for layer in contract["layers"]
        for room in layer.split(" | ")
        if not (ROOT / container / room).is_dir()
        and not (ROOT / container / f"{room}.py").is_file()
    ]

    assert missing == []


def test_public_things_say_what_they_are() -> None:
    """Every public class and function of the packages has a docstring; overloads share that of the last one."""
    silent = [
        f"{name_of(path)}: {node.name}"
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
        and not any(
            isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list
        )
    ]

    assert silent == []
