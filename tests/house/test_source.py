"""Rules for every file: size, names, first lines, what may not be written, and who may read the environment."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .source import PACKAGES, ROOT, everything, modules, name_of, nodes, text, tree

FILE_MAX = 500
FUNCTION_MAX = 70
GENERIC_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "base",
    "core",
    "misc",
    "manager",
    "types",
}

#: Floats in ``budgets`` that are no money: where, and why. Everything else must be an integer.
FLOATS = {
    "budgets/counter.py": "seconds to wait",
    "budgets/stores/file_lock.py": "seconds to wait",
    "budgets/stores/sqlite.py": "seconds to wait",
    "budgets/prices.py": "how alike two names are",
    "budgets/windows.py": "a microsecond's half, for a clock that tells seconds",
}


def _ids(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=name_of(path)) for path in paths]


@pytest.mark.parametrize("path", _ids(everything()))
def test_a_file_is_short_enough_to_be_read_at_once(path: Path) -> None:
    """No file is longer than 500 lines: split it where its subject splits."""
    assert len(text(path).splitlines()) <= FILE_MAX, f"{name_of(path)} is too long; split it"


@pytest.mark.parametrize("path", _ids(everything()))
def test_a_function_is_short_enough_to_be_seen_at_once(path: Path) -> None:
    """No function is longer than 70 lines; the options of a command, which are a table, are not counted."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_command = name_of(path).startswith("earmark/commands/") and node.decorator_list
            first = node.body[0].lineno if is_command else node.lineno
            length = (node.end_lineno or first) - first + 1
            assert length <= FUNCTION_MAX, (
                f"{name_of(path)}: {node.name} has {length} lines; split it"
            )


@pytest.mark.parametrize("path", _ids(everything()))
def test_a_file_says_its_one_subject_in_its_first_line(path: Path) -> None:
    """Every module begins with a docstring whose first line is a sentence that fits on one line."""
    said = ast.get_docstring(tree(path), clean=True)

    assert said, f"{name_of(path)} has no docstring"

    first = said.splitlines()[0]

    assert first.endswith((".", "!", "::")), f"{name_of(path)}: the first line is no whole sentence"
    assert text(path).startswith('"""'), f"{name_of(path)} does not begin with its docstring"


@pytest.mark.parametrize("path", _ids(everything()))
def test_a_file_has_a_name_of_its_own(path: Path) -> None:
    """No file or folder has a name that anything fits under."""
    parts = {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts}

    assert not parts & GENERIC_NAMES, f"{name_of(path)}: name it after its subject"


@pytest.mark.parametrize("path", _ids([p for p in everything() if p != Path(__file__)]))
def test_nothing_is_left_for_later(path: Path) -> None:
    """No note to oneself stays in the code: do it, or open an issue."""
    found = re.search(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError|To be written", text(path))

    assert found is None, f"{name_of(path)}: {found and found.group()}"


@pytest.mark.parametrize("path", _ids(modules("budgets")))
def test_money_never_meets_a_float(path: Path) -> None:
    """In ``budgets`` there is no float literal, no float() and no true division but for the listed reasons."""
    if name_of(path) in FLOATS:
        pytest.skip(f"floats here are {FLOATS[name_of(path)]}")
    for node in nodes(path):
        where = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), where
        assert not (isinstance(node, ast.Name) and node.id == "float"), where
        assert not (isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)), where
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            assert _joins_paths(node), f"{where}: true division; use //, or -(-a // b) to round up"


def _joins_paths(node: ast.BinOp) -> bool:
    """Whether ``a / b / "c"`` is about files: some part of it is text, a path or ``str(...)``."""
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", ast.unparse(node))}
    return bool(words & {"path", "folder", "parent", "proc", "str", "each"})


@pytest.mark.parametrize("name", FLOATS)
def test_the_list_of_floats_holds_no_file_without_one(name: str) -> None:
    """An exception that nobody needs any more is taken from the list."""
    found = [
        n for n in nodes(ROOT / name) if isinstance(n, ast.Constant) and isinstance(n.value, float)
    ]

    assert found, f"{name} has no float; take it from FLOATS"


@pytest.mark.parametrize("path", _ids(modules()))
def test_only_one_file_reads_the_environment(path: Path) -> None:
    """``budgets/settings.py`` is the one place that reads variables of the environment."""
    if name_of(path) == "budgets/settings.py":
        return
    found = re.search(r"\bos\.(environ|getenv)\b|from os import .*(environ|getenv)", text(path))

    assert found is None, f"{name_of(path)}: read it in budgets/settings.py"


@pytest.mark.parametrize("path", _ids(modules()))
def test_packages_do_not_print(path: Path) -> None:
    """A package never prints; the program writes through ``earmark.output``."""
    found = [n for n in nodes(path) if isinstance(n, ast.Name) and n.id in {"print", "breakpoint"}]

    assert not found, f"{name_of(path)}:{found and found[0].lineno}"


@pytest.mark.parametrize("path", _ids(modules()))
def test_a_package_does_not_import_itself_by_its_front_door(path: Path) -> None:
    """Inside a package nobody imports from the package's root: that makes cycles that show only at import."""
    package = path.relative_to(ROOT).parts[0]
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module != package, f"{name_of(path)}:{node.lineno}: from .room import ..."


def test_the_packages_are_where_they_are_said_to_be() -> None:
    """The rules above look at the real files."""
    assert all(modules(name) for name in PACKAGES)
