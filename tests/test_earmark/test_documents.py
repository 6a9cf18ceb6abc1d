"""docs/cli.md can't go stale: every command, option of a command's heading, exit code and JSON field is in it."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from budgets.settings import read_settings
from earmark.exits import MEANINGS
from earmark.main import COMMANDS, load

from .conftest import Past, Program

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BUILT = [name for name, (module, _) in COMMANDS.items() if find_spec(module) is not None]


def every_command() -> list[str]:
    """All commands that can be called, such as ``budget show``."""
    return [one for name in BUILT for one in _callable(name, load(name))]


def _callable(name: str, command: Any) -> list[str]:
    inner: dict[str, Any] = getattr(command, "commands", {})
    below = [one for each in inner for one in _callable(f"{name} {each}", inner[each])]
    own = [name] if not inner or command.invoke_without_command else []
    return own + below


@pytest.mark.parametrize("command", every_command())
def test_every_command_is_documented_and_has_help(command: str, earmark: Program) -> None:
    """A heading in docs/cli.md, and a --help that names the options all commands share."""
    page = PAGE.read_text(encoding="utf-8")
    assert re.search(rf"^###? `?earmark {command}\b", page, re.MULTILINE)
    ran = earmark(*command.split(), "--help")
    assert ran.code == 0
    assert "--json" in ran.out


def test_every_command_of_the_page_exists() -> None:
    """No heading speaks of something that is not there."""
    page = PAGE.read_text(encoding="utf-8")
    known = set(every_command())
    for heading in re.findall(r"^### `earmark ([a-z ]+[a-z])", page, re.MULTILINE):
        assert heading.strip() in known


def test_every_exit_code_is_documented() -> None:
    """With the same words as in --help."""
    page = PAGE.read_text(encoding="utf-8")
    for code in MEANINGS:
        assert re.search(rf"^\| {code.value} \|", page, re.MULTILINE)


def test_the_settings_of_the_page_can_be_used(tmp_path: Path) -> None:
    """The example earmark.toml is read as it stands."""
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [block] = [one for one in blocks if "[caps]" in one]
    path = tmp_path / "earmark.toml"
    path.write_text(block, encoding="utf-8")
    settings = read_settings(path)
    assert set(tomllib.loads(block)) == {"caps", "cap", "plan", "prices", "model", "gate"}
    assert len(settings.levels) == 7


@pytest.mark.parametrize(
    "arguments",
    [
        ("budget", "show"),
        ("budget", "check"),
        ("ledger", "lines"),
        ("ledger", "holds"),
        ("ledger", "check"),
        ("ledger", "report"),
        ("runs", "list"),
    ],
    ids=" ".join,
)
def test_every_json_field_is_documented(
    earmark: Program, past: Past, arguments: tuple[str, ...]
) -> None:
    """Each field of a document stands in the page; nano-dollars beside dollars go without saying."""
    page = PAGE.read_text(encoding="utf-8")

    def fields(value: object) -> set[str]:
        if isinstance(value, list):
            return {name for each in value for name in fields(each)}
        if not isinstance(value, dict):
            return set()
        inner = {name for each in value.values() for name in fields(each)}
        return {*value, *inner}

    document = earmark(*arguments, "--json").json
    for line in document.get("lines", []) if isinstance(document.get("lines"), list) else []:
        line.update(usage=None, note=None)
    names = {name for name in fields(document) if not name.endswith("_nanos")}
    assert {name for name in names if f"`{name}`" not in page} == set()
