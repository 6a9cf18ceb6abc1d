"""Every entry of a folder is found once, in order, lazily, or counted as skipped."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents import DocumentError, Found, Skipped, find
from orchestrator.documents.names import printable

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs names of arbitrary bytes")


def grow(folder: Path, *files: str) -> Path:
    for name in files:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name, encoding="utf-8")
    return folder


def paths(found: Iterator[Found]) -> list[str]:
    return [one.path for one in found]


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything, so the promise about permission is tested as someone else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def nested(folder: Path, name: str, depth: int) -> Iterator[None]:
    """Folders in each other with a file in the last; taken away again, as ``rmtree`` recurses."""
    home = Path.cwd()
    os.chdir(folder)
    for _ in range(depth):
        Path(name).mkdir()
        os.chdir(name)
    Path("end.txt").write_text("x", encoding="utf-8")
    bottom = os.open(".", os.O_RDONLY)
    os.chdir(home)
    try:
        yield
    finally:
        os.chdir(bottom)
        os.close(bottom)
        Path("end.txt").unlink()
        for _ in range(depth):
            os.chdir("..")
            Path(name).rmdir()
        os.chdir(home)


# --- order, depth, laziness ---------------------------------------------------------------------


def test_files_come_sorted_by_path_at_every_depth(tmp_path: Path) -> None:
    """The order is that of the paths as strings, whatever the file system says."""
    names = ["b.txt", "a/z.txt", "a/b/c/d.md", "a.txt", "a-b", "Z", "é/ü.txt", "a/b.txt"]

    assert sorted(names) == paths(find(grow(tmp_path, *names)))


def test_the_type_is_not_told_by_the_extension(tmp_path: Path) -> None:
    """F-03: every file is found, with whatever extension or none."""
    grow(tmp_path, "a", "b.docx", "c.txt", "d.jpeg")

    assert paths(find(tmp_path)) == ["a", "b.docx", "c.txt", "d.jpeg"]


def test_the_walk_is_lazy(tmp_path: Path) -> None:
    """Of 5,000 files only the folder at hand is listed: later folders are seen as they are then."""
    grow(tmp_path, *(f"{folder:02}/{file:03}.txt" for folder in range(50) for file in range(100)))
    walk = find(tmp_path)
    first = next(walk)
    grow(tmp_path, "07/new.txt")
    shutil.rmtree(tmp_path / "31")

    assert first.path == "00/000.txt"
    rest = paths(walk)
    assert "07/new.txt" in rest
    assert not any(path.startswith("31/0") for path in rest)
    assert len([path for path in rest if not path.endswith("/")]) == 4_999 + 1 - 100


def test_a_folder_that_vanishes_during_the_walk_is_a_row(tmp_path: Path) -> None:
    """A folder that was listed and is gone when its turn comes is named, and the walk goes on."""
    grow(tmp_path, "a.txt", "b/x.txt", "c.txt")
    walk = find(tmp_path)
    next(walk)
    shutil.rmtree(tmp_path / "b")
    rest = list(walk)

    assert [found.path for found in rest] == ["b/", "c.txt"]
    assert "gone" in rest[0].trouble


@posix
def test_folders_deeper_than_python_recurses(tmp_path: Path) -> None:
    """A tree of 1,200 folders in each other is walked to its end without a crash."""
    with nested(tmp_path, "d", 1_200):
        assert paths(find(tmp_path)) == ["d/" * 1_200 + "end.txt"]


@linux
def test_a_path_too_long_for_the_system_is_a_row(tmp_path: Path) -> None:
    """Where the system gives up on a path, the row says so."""
    with nested(tmp_path, "d" * 200, 25):
        (row,) = find(tmp_path)

    assert "too long" in row.trouble
    assert row.path.endswith("/")


# --- the folder itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("missing", "does not exist", id="missing"),
        pytest.param("file.txt", "is a file, not a folder", id="file"),
        pytest.param("file.txt/below", "is a file, not a folder", id="below a file"),
        pytest.param("zero\x00byte", "is not a path", id="zero byte"),
        pytest.param("n" * 300, "too long", id="long name"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    """The call itself says what is wrong with the folder, before anything is iterated."""
    grow(tmp_path, "file.txt")
    with pytest.raises(DocumentError, match=says) as caught:
        find(tmp_path / name)

    assert "\n" not in str(caught.value)


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    """The folder that is asked for may itself be a link."""
    grow(tmp_path, "real/a.txt")
    (tmp_path / "alias").symlink_to("real")

    assert paths(find(tmp_path / "alias")) == ["a.txt"]


def test_an_empty_folder_has_no_rows(tmp_path: Path) -> None:
    """Nothing in it, nothing found, nothing skipped."""
    walk = find(tmp_path)

    assert list(walk) == []
    assert Skipped() == walk.skipped


@posix
def test_permission_denied_is_a_row_or_a_sentence(shared_folder: Path) -> None:
    """A locked folder inside is a row and the rest is read; a locked root is an error."""
    grow(shared_folder, "a.txt", "locked/b.txt", "z.txt")
    (shared_folder / "locked").chmod(0o000)
    with nobody():
        rows = list(find(shared_folder))
        with pytest.raises(DocumentError, match="permission denied"):
            find(shared_folder / "locked")

    assert [row.path for row in rows] == ["a.txt", "locked/", "z.txt"]
    assert [r.trouble for r in rows] == ["", "this folder can't be listed: permission denied", ""]
    (shared_folder / "locked").chmod(0o755)


# --- hidden, include, exclude ---------------------------------------------------------------------


def test_hidden_names_are_skipped_and_counted(tmp_path: Path) -> None:
    """What begins with a dot is passed over, said so, and found on request."""
    grow(tmp_path, ".git/config", ".git/objects/aa", ".env", "a.txt", "b/.cache/x", "b/c.txt")
    walk = find(tmp_path)

    assert paths(walk) == ["a.txt", "b/c.txt"]
    assert Skipped(hidden=3) == walk.skipped
    assert len(list(find(tmp_path, hidden=True))) == 6


TREE = ["a.txt", "b.md", "mail/1.txt", "mail/2.md", "mail/old/3.txt", "old/4.txt", "x[1].txt"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        pytest.param((), (), TREE, id="all"),
        pytest.param(("*.md",), (), ["b.md", "mail/2.md"], id="name at any depth"),
        pytest.param(("mail/*.txt",), (), ["mail/1.txt"], id="path, star stays in a name"),
        pytest.param(("**/3.txt",), (), ["mail/old/3.txt"], id="any number of folders"),
        pytest.param(("**/a.txt",), (), ["a.txt"], id="no folder is a number of folders"),
        pytest.param(("mail/**",), (), TREE[2:5], id="all below"),
        pytest.param(("mail",), (), TREE[2:5], id="folder by name"),
        pytest.param(("mail/",), (), TREE[2:5], id="folder with slash"),
        pytest.param(("./mail/old",), (), ["mail/old/3.txt"], id="folder by path"),
        pytest.param(("*.md", "a.*"), (), ["a.txt", "b.md", "mail/2.md"], id="several"),
        pytest.param(("a.txt/",), (), [], id="a slash means folders only"),
        pytest.param(("x[[]1].txt",), (), ["x[1].txt"], id="bracket"),
        pytest.param((), ("*.txt",), ["b.md", "mail/2.md"], id="exclude names"),
        pytest.param((), ("old",), TREE[:4] + TREE[6:], id="exclude folders by name"),
        pytest.param((), ("/old",), TREE[:5] + TREE[6:], id="anchored"),
        pytest.param(("*.txt",), ("mail",), ["a.txt", "old/4.txt", "x[1].txt"], id="exclude wins"),
        pytest.param(("*.TXT",), (), [], id="case counts", marks=posix),
    ],
)
def test_patterns(
    tmp_path: Path, include: tuple[str, ...], exclude: tuple[str, ...], expected: list[str]
) -> None:
    """Patterns match the path, the name, or a folder above; exclude wins over include."""
    grow(tmp_path, *TREE)

    assert expected == paths(find(tmp_path, include=include, exclude=exclude))


def test_what_patterns_leave_out_is_counted(tmp_path: Path) -> None:
    """An excluded folder counts once, and is not walked."""
    grow(tmp_path, *TREE)
    walk = find(tmp_path, exclude=["mail", "*.md"])
    list(walk)

    assert Skipped(excluded=2) == walk.skipped


@pytest.mark.parametrize("pattern", ["", "/", "./"])
def test_an_empty_pattern_is_refused(tmp_path: Path, pattern: str) -> None:
    """A pattern that can match nothing is a mistake, and said so at once."""
    with pytest.raises(DocumentError, match="matches nothing"):
        find(tmp_path, exclude=[pattern])


def test_one_string_is_not_a_list_of_patterns(tmp_path: Path) -> None:
    """A forgotten pair of brackets does not turn into one pattern per letter."""
    with pytest.raises(DocumentError, match="a list of strings"):
        find(tmp_path, include="*.txt")


def test_accents_match_however_they_are_composed(tmp_path: Path) -> None:
    """A pattern typed on one system matches names written on another."""
    grow(tmp_path, unicodedata.normalize("NFD", "café.txt"))

    assert len(list(find(tmp_path, include=[unicodedata.normalize("NFC", "café.*")]))) == 1


@pytest.mark.timeout(60)
def test_a_pattern_of_many_stars_ends(tmp_path: Path) -> None:
    """No pattern makes matching explode."""
    grow(tmp_path, "a" * 200)

    assert paths(find(tmp_path, include=["*a" * 40 + "b", "**/" * 30 + "b"])) == []


# --- links ----------------------------------------------------------------------------------------


@posix
def test_a_loop_of_links_ends_and_loses_nothing(tmp_path: Path) -> None:
    """Links to folders inside are not followed: their files are read at their own place, once."""
    grow(tmp_path, "a/b/c.txt")
    (tmp_path / "a/b/up").symlink_to("../..")
    (tmp_path / "a/self").symlink_to(".")
    (tmp_path / "again").symlink_to("a")
    walk = find(tmp_path)

    assert paths(walk) == ["a/b/c.txt"]
    assert Skipped(linked=3) == walk.skipped


@posix
def test_links_that_can_not_be_read_are_rows(tmp_path: Path) -> None:
    """Dead links, links in a ring and links that lead outside each say what they are."""
    grow(tmp_path, "outside/secret.txt", "in/a.txt")
    root = tmp_path / "in"
    (root / "dead").symlink_to("nowhere")
    (root / "ring1").symlink_to("ring2")
    (root / "ring2").symlink_to("ring1")
    (root / "out-file").symlink_to(tmp_path / "outside/secret.txt")
    (root / "out-folder").symlink_to("../outside")
    (root / "out-loop").symlink_to("..")
    found = {row.path: row.trouble for row in find(root)}

    assert found.pop("a.txt") == ""
    assert found.pop("dead") == "a link to something that does not exist: nowhere"
    assert "loop" in found.pop("ring1")
    assert "loop" in found.pop("ring2")
    assert "a link to a file outside" in found.pop("out-file")
    assert "a link to a folder outside" in found.pop("out-folder")
    assert "a link to a folder outside" in found.pop("out-loop")
    assert found == {}


@posix
def test_a_linked_file_is_read_once(tmp_path: Path) -> None:
    """A link is skipped where its target has a row, and stands in where it has none."""
    grow(tmp_path, "a.txt", ".store/v1.txt", "notes.md")
    (tmp_path / "same.txt").symlink_to("a.txt")
    (tmp_path / "kept1.txt").symlink_to(".store/v1.txt")
    (tmp_path / "kept2.txt").symlink_to("kept1.txt")
    (tmp_path / "notes.txt").symlink_to("notes.md")
    walk = find(tmp_path, include=["*.txt"])
    rows = {row.path: row for row in walk}

    assert list(rows) == ["a.txt", "kept1.txt", "notes.txt"]
    assert (tmp_path / ".store/v1.txt").resolve() == rows["kept1.txt"].file
    assert walk.skipped.linked == 2


@posix
def test_a_link_to_a_hidden_folder_is_a_row(tmp_path: Path) -> None:
    """What would be lost by not following a link is said."""
    grow(tmp_path, ".releases/5/a.txt")
    (tmp_path / "current").symlink_to(".releases/5")
    (row,) = find(tmp_path)

    assert "a link to a hidden folder" in row.trouble


# --- what is no file ------------------------------------------------------------------------------


@posix
@pytest.mark.timeout(60)
def test_pipes_and_sockets_are_rows_and_never_block(tmp_path: Path) -> None:
    """Nothing that could wait for a writer is opened."""
    os.mkfifo(tmp_path / "pipe")
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/socket")
        (row,) = find(Path(short))
    (pipe,) = find(tmp_path)

    assert row.trouble.startswith("a socket")
    assert pipe.trouble.startswith("a named pipe")


@linux
def test_devices_are_rows() -> None:
    """A device is named, never read: /dev/zero has no end."""
    found = {row.path: row.trouble for row in find(Path("/dev"), include=["zero", "null"])}

    assert {"a device, not a file with content"} == set(found.values())


# --- names ----------------------------------------------------------------------------------------


@linux
def test_odd_names_are_printable_and_different(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, control codes and their spelled-out twins never share a path."""
    names = [
        *(b"caf\xe9.txt", b"caf\\xe9.txt", b"caf\xe8.txt", b"caf\\\\xe9.txt", "café.txt".encode()),
        *(b"two\nlines", b"two\\u000alines", b"\xc2\x80", b"\x80", b"\x1b[31mred", b" ", b"\t"),
        *("\u202etxt.exe".encode(), "👩‍👩‍👧.txt".encode(), b"-rf", b"a:b*?", b"x" * 255),
    ]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    found = list(find(tmp_path))

    assert len(names) == len({row.path for row in found})
    assert sorted(names) == sorted(row.file.read_bytes() for row in found)
    for row in found:
        row.path.encode("utf-8")
        assert not set(row.path) & {"\n", "\t", "\x1b", "\u202e"}
    assert r"caf\xe9.txt" in {row.path for row in found}
    assert "👩‍👩‍👧.txt" in {row.path for row in found}


@linux
def test_a_printed_path_works_as_a_pattern(tmp_path: Path) -> None:
    """What a report shows can be pasted into --exclude, escapes and all."""
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x", encoding="utf-8")

    assert paths(find(tmp_path, exclude=[r"caf\xe9.txt"])) == []
    assert paths(find(tmp_path, exclude=[os.fsdecode(b"caf\xe9.txt")])) == []


@posix
@given(st.lists(st.binary(min_size=1, max_size=8), min_size=2, max_size=2, unique=True))
def test_different_names_print_differently(names: list[bytes]) -> None:
    """No two byte strings print alike, and what is printed can be encoded."""
    one, two = (printable(os.fsdecode(name)) for name in names)

    assert one != two
    assert one.encode("utf-8")
