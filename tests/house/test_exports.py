"""What packages export: exact, sorted, and cheap to import."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import budgets.errors
import orchestrator.errors

from .source import ROOT, modules, name_of, nodes, tree

FRONT_DOORS = ("budgets", "orchestrator", "patterns")
WITH_ALL = [
    path
    for path in modules()
    if any(isinstance(n, ast.Name) and n.id == "__all__" for n in nodes(path))
]


@pytest.mark.parametrize("path", [pytest.param(path, id=name_of(path)) for path in WITH_ALL])
def test_the_list_of_names_is_exact_and_sorted(path: Path) -> None:
    """Every name in ``__all__`` exists, stands there once, and in order."""
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(dotted)
    names = list(module.__all__)

    assert names == sorted(set(names), key=lambda n: (n.upper() != n, n[0].islower(), n))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", FRONT_DOORS)
def test_the_front_door_lists_all_that_it_imports(package: str) -> None:
    """A public name that the package's root imports is in ``__all__``, and the other way round."""
    imported = {
        alias.asname or alias.name
        for node in tree(ROOT / package / "__init__.py").body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert {n for n in imported if not n.startswith("_")} == set(
        importlib.import_module(package).__all__
    )


@pytest.mark.parametrize("package", FRONT_DOORS)
def test_the_front_door_stays_small(package: str) -> None:
    """Few names, so that a reader can know them all."""
    assert len(importlib.import_module(package).__all__) <= 35


IMPORT_COSTS = [
    pytest.param(
        "budgets",
        ("genai_prices", "apsw", "anthropic", "httpx2", "pydantic", "orchestrator", "sqlite3"),
        260,
        id="budgets",
    ),
    pytest.param(
        "patterns",
        ("orchestrator.simulator", "apsw", "typer", "rich", "genai_prices"),
        None,
        id="patterns",
    ),
    pytest.param(
        "earmark.main", ("anthropic", "rich", "apsw", "genai_prices", "budgets"), 260, id="earmark"
    ),
]


@pytest.mark.parametrize(("module", "absent", "most"), IMPORT_COSTS)
def test_an_import_brings_in_nothing_heavy(
    module: str, absent: tuple[str, ...], most: int | None
) -> None:
    """Prices, database drivers, the SDK and the simulator are imported when they are needed, not before."""
    code = (
        f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    brought = set(run.stdout.split())

    assert brought & set(absent) == set()
    assert most is None or len(brought) <= most


@pytest.mark.parametrize(
    "module", [budgets.errors, orchestrator.errors], ids=["budgets", "orchestrator"]
)
def test_the_tree_of_errors_is_the_one_that_is_drawn(module: object) -> None:
    """The drawing at the top of ``errors.py`` and the classes say the same."""
    drawn: set[tuple[str, str]] = set()
    path: list[str] = []
    for line in str(module.__doc__).splitlines()[2:]:
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        path[depth:] = [line.split()[0]]
        if depth:
            drawn.add((path[depth], path[depth - 1]))
    classes = {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and kind.__module__ == module.__name__
    }
    real = {
        (kind.__name__, base.__name__)
        for kind in classes
        for base in kind.__bases__
        if base in classes
    }

    assert drawn == real
