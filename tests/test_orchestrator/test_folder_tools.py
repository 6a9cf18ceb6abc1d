"""Tools over a folder: what is in it can be listed, read and searched; nothing outside of it, and within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.documents import DocumentError
from orchestrator.folder_tools import PAGE_CHARS, folder_tools


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("one\nTwo words\nthree\n")
    (root / "deep" / "b.md").write_text("two words again\n")
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (root / ".env").write_text("KEY=two words")
    (tmp_path / "secret.txt").write_text("two words outside")
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    return root


def _call(folder: Path, name: str, **given: Any) -> str:
    return {one.name: one for one in folder_tools(folder)}[name].function(**given)


def test_files_are_listed(folder: Path) -> None:
    """All, or those below a folder; hidden ones and links that lead out are not there."""
    assert _call(folder, "list_files").splitlines() == ["a.txt", "deep/b.md", "picture.png"]
    assert _call(folder, "list_files", below="deep/") == "deep/b.md"
    assert "no files" in _call(folder, "list_files", below="nowhere")


def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    """Each file is on exactly one."""
    for number in range(450):
        (tmp_path / f"{number:04}.txt").write_text("x")
    pages = [_call(tmp_path, "list_files", page=page) for page in (1, 2, 3)]
    listed = [line for page in pages for line in page.splitlines() if line.endswith(".txt")]
    assert listed == [f"{number:04}.txt" for number in range(450)]
    assert "page 2" in pages[0]
    assert "no page 4" in _call(tmp_path, "list_files", page=4)


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "out.txt", ".env", "/etc/passwd", "deep/../../secret.txt", "", "nowhere.txt"],
)
def test_nothing_outside_can_be_read(folder: Path, path: str) -> None:
    """By no path, link or name of a hidden file."""
    told = _call(folder, "read_file", path=path)
    assert "there is no file" in told
    assert "outside" not in told


def test_a_file_is_read_with_its_lines(folder: Path) -> None:
    """A file without text says why."""
    assert _call(folder, "read_file", path="a.txt").endswith("one\nTwo words\nthree")
    assert _call(folder, "read_file", path="./a.txt", from_line=3).endswith("3 to 3:\nthree")
    assert "binary" in _call(folder, "read_file", path="picture.png")


def test_a_long_file_comes_in_parts(tmp_path: Path) -> None:
    """Each says where the next begins; together they are the file."""
    lines = [f"line {number} " + "x" * 90 for number in range(1_000)]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    got: list[str] = []
    at = 1
    while at:
        told = _call(tmp_path, "read_file", path="long.txt", from_line=at).splitlines()
        assert sum(len(line) + 1 for line in told) < PAGE_CHARS + 300
        got += [line for line in told[1:] if not line.startswith("(")]
        at = int(told[-1].rstrip(")").split("=")[1]) if told[-1].startswith("(") else 0
    assert got == lines


def test_a_search_says_where(folder: Path) -> None:
    """Without regard to case, in what can be read."""
    told = _call(folder, "search_files", words="TWO words")
    assert told.splitlines() == ["a.txt:2: Two words", "deep/b.md:1: two words again"]
    assert _call(folder, "search_files", words="two", below="deep").startswith("deep/b.md:1")
    assert "no line holds" in _call(folder, "search_files", words="zebra")
    assert "say which" in _call(folder, "search_files", words=" ")


def test_a_search_with_many_hits_is_cut(tmp_path: Path) -> None:
    """And says so."""
    (tmp_path / "many.txt").write_text("hit\n" * 5_000)
    told = _call(tmp_path, "search_files", words="hit")
    assert len(told) < PAGE_CHARS
    assert "more" in told.splitlines()[-1]


def test_a_file_that_vanishes_says_so(folder: Path) -> None:
    """No exception reaches the model's loop."""
    tools = {one.name: one for one in folder_tools(folder)}
    (folder / "a.txt").unlink()
    assert "unreadable" in tools["read_file"].function(path="a.txt")
    assert "deep/b.md" in tools["search_files"].function(words="two words")


def test_no_folder_is_the_callers_mistake(tmp_path: Path) -> None:
    """It is said when the tools are made."""
    with pytest.raises(DocumentError):
        folder_tools(tmp_path / "nowhere")
