"""The source as the house tests see it: which files there are, and their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("budgets", "orchestrator", "patterns", "earmark")


def modules(*packages: str) -> list[Path]:
    """All modules of the packages (of every package, if none is named), in order."""
    return sorted(path for name in packages or PACKAGES for path in (ROOT / name).rglob("*.py"))


def everything() -> list[Path]:
    """All Python files of the project."""
    folders = (*PACKAGES, "tests", "examples", "benchmarks", "scripts")
    return sorted(path for name in folders for path in (ROOT / name).rglob("*.py"))


def name_of(path: Path) -> str:
    """A file as it is named in messages."""
    return path.relative_to(ROOT).as_posix()


@cache
def text(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(text(path), filename=str(path))


def nodes(path: Path) -> Iterator[ast.AST]:
    """Every node of a file's syntax tree."""
    return ast.walk(tree(path))


def blocks(document: Path, language: str) -> list[str]:
    """The fenced code blocks of a Markdown file in one language."""
    found: list[str] = []
    inside: list[str] | None = None
    for line in text(document).splitlines():
        if inside is None:
            if line.strip() == f"```{language}":
                inside = []
        elif line.strip() == "```":
            found.append("\n".join(inside))
            inside = None
        else:
            inside.append(line)
    return found
