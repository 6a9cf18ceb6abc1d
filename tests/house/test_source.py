"""Rules for every file: size, names, first lines, what may not be written, and who may read the environment."""

from __future__ import annotations

import ast
import re

import pytest

from .source import PACKAGES, ROOT, everything, modules, name_of, nodes, text, tree

FILE_MAX = 500
TEST_FILE_MAX = 800
FUNCTION_MAX = 70
GENERIC_NAMES = {
    *("utils", "util", "helpers", "helper", "common", "base", "core", "misc", "manager", "types"),
}

#: Floats in ``budgets`` that are no money: where, and why. Everything else must be an integer.
FLOATS = {
    "budgets/counter.py": "seconds to wait",
    "budgets/stalls.py": "seconds to wait",
    "budgets/threaded_counter.py": "seconds to wait, and how long commits take",
    "budgets/stores/file_lock.py": "seconds to wait",
    "budgets/stores/sqlite.py": "seconds to wait",
    "budgets/prices.py": "how alike two names are",
    "budgets/windows.py": "how alike two names are",
    "budgets/testing/contracts_of_lines.py": "values that a store must give back to the bit",
    "budgets/testing/contracts_of_transactions.py": "seconds to wait",
}


def test_a_file_is_short_enough_to_be_read_at_once() -> None:
    """No file is longer than 500 lines (tests, which are tables: 800): split it where its subject splits."""
    long = {name_of(path): len(text(path).splitlines()) for path in everything()}

    assert {
        name: lines
        for name, lines in long.items()
        if lines > (TEST_FILE_MAX if name.startswith("tests/") else FILE_MAX)
    } == {}


def test_a_function_is_short_enough_to_be_seen_at_once() -> None:
    """No function is longer than 70 lines; the options of a command, which are a table, are not counted."""
    long = {}
    for path in everything():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_command = "earmark/commands/" in name_of(path) and node.decorator_list
                first = node.body[0].lineno if is_command else node.lineno
                length = (node.end_lineno or first) - first + 1
                if length > FUNCTION_MAX:
                    long[f"{name_of(path)}: {node.name}"] = length

    assert long == {}


def test_a_file_says_its_one_subject_in_its_first_line() -> None:
    """Every module begins with a docstring whose first line is a whole sentence."""
    silent = []
    for path in everything():
        said = (ast.get_docstring(tree(path)) or "").partition("\n")[0]
        if text(path).strip() and not (text(path).startswith('"""') and said.endswith((".", "?"))):
            silent.append(name_of(path))

    assert silent == []


def test_a_file_has_a_name_of_its_own() -> None:
    """No file or folder has a name that anything fits under."""
    names = [path.relative_to(ROOT).with_suffix("") for path in everything()]
    generic = [str(name) for name in names if GENERIC_NAMES & {p.strip("_") for p in name.parts}]

    assert generic == []


def test_nothing_is_left_for_later() -> None:
    """No note to oneself stays in the code: do it, or open an issue."""
    mark = re.compile(
        "|".join((r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bX" + r"XX\b", "To be " + "written"))
    )
    found = [
        f"{name_of(path)}: {m.group()}" for path in everything() if (m := mark.search(text(path)))
    ]

    assert found == []


def test_money_never_meets_a_float() -> None:
    """In ``budgets`` there is no float literal, no float() and no true division but for the listed reasons."""
    found = [
        f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in modules("budgets")
        if name_of(path) not in FLOATS
        for node in nodes(path)
        if isinstance(node, ast.expr | ast.stmt) and _makes_floats(node)
    ]

    assert found == []


def _makes_floats(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=float()) | ast.Call(func=ast.Name(id="float")):
            return True
        case ast.AugAssign(op=ast.Div()):
            return True
        case ast.BinOp(op=ast.Div()):
            words = {word.lower() for word in re.findall(r"[A-Za-z]+", ast.unparse(node))}
            return not words & {"path", "folder", "parent", "proc", "each"}  # these join paths
    return False


@pytest.mark.parametrize("name", FLOATS)
def test_the_list_of_floats_holds_no_file_without_one(name: str) -> None:
    """An exception that nobody needs any more is taken from the list."""
    assert any(_makes_floats(node) for node in nodes(ROOT / name)), "take it from FLOATS"


def test_only_one_file_reads_the_environment() -> None:
    """``budgets/settings.py`` is the one place that reads settings there; workers only filter what they pass on."""
    readers = {
        name_of(path)
        for path in modules()
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*(environ|getenv)", text(path))
    }

    passing_on = {f"orchestrator/workers/{name}.py" for name in ("environment", "supervisor")}
    assert readers == {"budgets/settings.py", *passing_on}


def test_packages_do_not_print() -> None:
    """A package never prints; the program writes through ``earmark.output``."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.Name) and node.id in {"print", "breakpoint"}
    ]

    assert found == []


def test_a_package_does_not_import_itself_by_its_front_door() -> None:
    """Inside a package nobody imports names from its root: such cycles show only at import."""
    found = []
    for path in modules():
        package = path.relative_to(ROOT).parts[0]
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == package:
                names = [alias.name for alias in node.names]
                found += [name_of(path) for n in names if not _is_room(package, n)]

    assert found == []


def _is_room(package: str, name: str) -> bool:
    place = ROOT / package / name
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_the_rules_look_at_real_files() -> None:
    """None of the packages is looked for in the wrong place."""
    assert all(len(modules(name)) > 3 for name in PACKAGES)
