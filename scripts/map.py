"""The map of the house in ARCHITECTURE.md, drawn from the first lines of docstrings; run it after adding a room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("patterns", "orchestrator", "budgets", "earmark")
WIDTH = 118


def lines_of(folder: Path, depth: int = 0) -> Iterator[str]:
    """The folder's own line, then its files, then its folders."""
    yield _line(f"{folder.name}/", folder / "__init__.py", depth)
    for path in sorted(folder.glob("*.py")):
        if path.stem not in {"__init__", "__main__"}:
            yield _line(path.name, path, depth + 1)
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from lines_of(inner, depth + 1)


def _line(name: str, path: Path, depth: int) -> str:
    said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "?").partition("\n")[
        0
    ]
    subject, _, rest = said.partition(": ")
    # "Money: integer nano-dollars": the file's name has said the first part.
    same = subject.lower().split()[-1].rstrip("s") in name.lower().replace("_", " ")
    what = (rest if same and rest else said).replace("``", "").rstrip(".")
    if not what[:2].isupper():
        what = what[0].lower() + what[1:]
    line = f"{'  ' * depth}{name:<{22 - 2 * depth}} {what}"
    if len(line) <= WIDTH:
        return line
    for sign in ("; ", ": ", ", "):
        cut = line.rfind(sign, 60, WIDTH)
        if cut > 0:
            return line[:cut]
    return line[: line.rfind(" ", 0, WIDTH)]


def main() -> None:
    """Put the map in the place of the first block of the page."""
    page = ROOT / "ARCHITECTURE.md"
    before, _, rest = page.read_text(encoding="utf-8").partition("```text\n")
    after = rest.partition("```\n")[2]
    drawn = "\n".join(line for name in PACKAGES for line in lines_of(ROOT / name))
    page.write_text(f"{before}```text\n{drawn}\n```\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
