"""One file becomes a document or a problem with one sentence, never an exception."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import io
import os
import random
import shutil
import sqlite3
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from orchestrator.documents import Document, DocumentError, Found, Problem, find, read
from orchestrator.documents.reading import why

from .test_documents_walk import grow, linux, nobody, posix, shared_folder

__all__ = ["shared_folder"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def put(folder: Path, content: bytes, name: str = "file.txt") -> Found:
    (folder / name).write_bytes(content)
    return Found(path=name, file=folder / name)


def problem(found: Found, max_bytes: int = 1024 * 1024) -> Problem:
    row = read(found, max_bytes=max_bytes)
    assert isinstance(row, Problem)
    assert found.path == row.path
    assert row.reason
    assert "\n" not in row.reason
    return row


# --- what a document says -------------------------------------------------------------------------


def test_a_document_carries_text_size_encoding_and_identity(tmp_path: Path) -> None:
    """The text is the file's, line ends included; the identity is the hash of its bytes."""
    content = "Grüße\r\n\tfrom the field\n".encode()
    document = read(put(tmp_path, content))

    assert document == Document(
        path="file.txt",
        text="Grüße\r\n\tfrom the field\n",
        bytes=len(content),
        encoding="utf-8",
        sha256=hashlib.sha256(content).hexdigest(),
    )


def test_identity_is_the_content_not_the_place(tmp_path: Path) -> None:
    """Z-01: a renamed file stays the same document, an edited one becomes another."""
    first = read(put(tmp_path, b"My invoice is wrong.", "1.txt"))
    moved = read(put(tmp_path, b"My invoice is wrong.", "2.txt"))
    edited = read(put(tmp_path, b"My invoice is wrong!", "1.txt"))
    assert isinstance(first, Document)
    assert isinstance(moved, Document)
    assert isinstance(edited, Document)

    assert first.sha256 == moved.sha256 != edited.sha256


# --- empty ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b" \r\n\t\x0c ", id="white space"),
        pytest.param(b"\xef\xbb\xbf", id="only a mark"),
        pytest.param("\ufeff \u00a0\u200b\n".encode("utf-16-le"), id="UTF-16 blanks"),
    ],
)
def test_nothing_to_read_is_empty(tmp_path: Path, content: bytes) -> None:
    """A file without a visible character is empty, and no call is spent on it."""
    assert problem(put(tmp_path, content)).outcome == "empty"


# --- binary ---------------------------------------------------------------------------------------


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return file.getvalue()


def sqlite_file(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "real.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    return (folder / "real.db").read_bytes()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"%PDF-1.7\nall letters so far", "a PDF, not text", id="pdf"),
        pytest.param(zipped("a.txt"), "a zip archive", id="zip"),
        pytest.param(zipped("[Content_Types].xml", "word/document.xml"), "a Word", id="docx"),
        pytest.param(zipped("[Content_Types].xml", "xl/workbook.xml"), "an Excel", id="xlsx"),
        pytest.param(zipped("keyword/a.txt"), "a zip archive", id="zip with a telling folder"),
        pytest.param(gzip.compress(b"text"), "a gzip archive", id="gzip"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(20), "a PNG image", id="png"),
        pytest.param(b"\xff\xd8\xff\xe0\x00\x10JFIF", "a JPEG image", id="jpeg"),
        pytest.param(b"GIF89a\x01\x00\x01\x00", "a GIF image", id="gif"),
        pytest.param(b"RIFF\x24\x00\x00\x00WEBPVP8 ", "a WebP image", id="webp"),
        pytest.param(b"\x7fELF\x02\x01\x01", "an ELF", id="elf"),
        pytest.param(b"MZ\x90\x00\x03", "a Windows program", id="exe"),
        pytest.param(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(8), "an old Office", id="doc"),
        pytest.param(b"\x00\x00\x00\x18ftypmp42", "an MP4", id="mp4"),
        pytest.param(bytes(4096), "only zero bytes", id="zeros"),
        pytest.param(bytes(range(256)) * 8, "control codes", id="all bytes"),
        pytest.param(
            b"\xff\xfe" + random.Random(7).randbytes(400), "begins like UTF-16", id="false mark"
        ),
        pytest.param(b"\xff\xfb\x90d" + bytes(range(200)) * 5, "control codes", id="mp3"),
    ],
)
@pytest.mark.parametrize("name", ["file.txt", "file"])
def test_binary_is_told_by_content(tmp_path: Path, content: bytes, says: str, name: str) -> None:
    """F-03: a picture called .txt is a picture, and the reason names what it is."""
    row = problem(put(tmp_path, content, name))

    assert row.outcome == "binary"
    assert says in row.reason


def test_a_real_database_is_binary(tmp_path: Path) -> None:
    """A file made by SQLite itself is recognised."""
    assert "an SQLite database" in problem(put(tmp_path, sqlite_file(tmp_path))).reason


@pytest.mark.parametrize(
    "text",
    [
        "MZ is my initials.",
        "BZh? What is that?",
        "ID3 tags are lost.",
        "BM: thanks",
        "RIFFs wanted",
    ],
)
def test_words_that_are_also_signatures_stay_text(tmp_path: Path, text: str) -> None:
    """A ticket that begins with the letters of a format is still a ticket."""
    document = read(put(tmp_path, text.encode(), "file.png"))

    assert isinstance(document, Document)
    assert text == document.text


# --- too large ------------------------------------------------------------------------------------


@posix
@pytest.mark.timeout(60)
def test_a_sparse_file_of_2_gb_is_refused_unread(tmp_path: Path) -> None:
    """The size alone refuses it: no memory, no time."""
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2 << 30)
    tracemalloc.start()
    row = problem(Found(path="huge.txt", file=tmp_path / "huge.txt"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert row.outcome == "too_large"
    assert "2,147,483,648 bytes, the limit is 1,048,576" in row.reason
    assert peak < 1_000_000


@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False)])
def test_the_limit_is_exact(tmp_path: Path, size: int, fits: bool) -> None:
    """A file of exactly the limit is read, one byte more is not."""
    row = read(put(tmp_path, b"x" * size), max_bytes=100)

    assert isinstance(row, Document) is fits
    if isinstance(row, Problem):
        assert row.outcome == "too_large"


def test_a_large_binary_is_binary(tmp_path: Path) -> None:
    """Where a higher limit would not help, the reason is the format."""
    row = problem(put(tmp_path, b"%PDF-1.7" + bytes(500)), max_bytes=100)

    assert (row.outcome, row.reason) == ("binary", "a PDF, not text")


@linux
@pytest.mark.timeout(60)
def test_a_file_without_a_size_is_bounded_too() -> None:
    """A file that claims zero bytes and has many is cut off at the limit, not believed."""
    row = problem(Found(path="maps", file=Path("/proc/self/maps")), max_bytes=50)

    assert row.outcome == "too_large"
    assert isinstance(read(Found(path="stat", file=Path("/proc/self/stat"))), Document)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_senseless_limit_is_refused(tmp_path: Path, limit: int) -> None:
    """The caller's mistake is an error, not a row."""
    with pytest.raises(DocumentError, match="1 or more"):
        read(put(tmp_path, b"x"), max_bytes=limit)


# --- unreadable -----------------------------------------------------------------------------------


def test_a_file_that_vanished_is_unreadable(tmp_path: Path) -> None:
    """Found, then deleted: a row that says so."""
    (found,) = find(grow(tmp_path, "a.txt"))
    found.file.unlink()

    assert (
        problem(found).outcome,
        problem(found).reason,
    ) == ("unreadable", "it was there a moment ago and is gone")


def test_a_folder_that_vanished_is_unreadable(tmp_path: Path) -> None:
    """Found, then its folder replaced by a file: a row that says so."""
    (found,) = find(grow(tmp_path, "a/b.txt"))
    shutil.rmtree(tmp_path / "a")
    grow(tmp_path, "a")

    assert problem(found).outcome == "unreadable"


@posix
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "loop"])
def test_a_file_replaced_by_something_else_is_unreadable(tmp_path: Path, kind: str) -> None:
    """What is in the file's place by the time it is read neither blocks nor leads elsewhere."""
    secret = tmp_path / "secret"
    secret.write_text("do not send", encoding="utf-8")
    (found,) = find(grow(tmp_path / "in", "a.txt"))
    found.file.unlink()
    if kind == "pipe":
        os.mkfifo(found.file)
    elif kind == "folder":
        found.file.mkdir()
    else:
        found.file.symlink_to(secret if kind == "link" else found.file)

    assert problem(found).outcome == "unreadable"


@posix
def test_a_file_without_permission_is_unreadable(shared_folder: Path) -> None:
    """A locked file is a row that names the reason."""
    (found,) = find(grow(shared_folder, "a.txt"))
    found.file.chmod(0o000)
    with nobody():
        row = problem(found)

    assert (row.outcome, row.reason) == ("unreadable", "permission denied")


@linux
def test_a_fault_while_reading_is_unreadable() -> None:
    """A file that opens and then fails to read (as on a bad disk) is a row."""
    row = problem(Found(path="mem", file=Path("/proc/self/mem")))

    assert (row.outcome, row.reason) == ("unreadable", "reading failed: input/output error")


def test_a_path_with_a_zero_byte_is_unreadable(tmp_path: Path) -> None:
    """A path that can't exist is a row like any other."""
    assert problem(Found(path="x", file=tmp_path / "a\x00b")).outcome == "unreadable"


def test_trouble_of_the_walk_becomes_the_row(tmp_path: Path) -> None:
    """What the walk knew is the reason, and the file is not touched."""
    row = problem(Found(path="p", file=put(tmp_path, b"x").file, trouble="a named pipe"))

    assert (row.outcome, row.reason) == ("unreadable", "a named pipe")


def test_every_system_error_has_words() -> None:
    """No errno, known or not, leaves the reason empty."""
    assert all(why(OSError(code, os.strerror(code))) for code in errno.errorcode)
    assert why(OSError())


class Writer:
    """Stands in for ``os.read`` and writes to the file between two reads of it, as others may."""

    def __init__(self, file: Path, times: int) -> None:
        self.file = file
        self.times = times
        self.read = os.read

    def __call__(self, descriptor: int, length: int) -> bytes:
        piece = self.read(descriptor, length)
        if len(piece) == length and self.times:  # not when it finds the end
            self.times -= 1
            with self.file.open("ab") as file:
                file.write(b" and more")
        return piece


@pytest.mark.parametrize(("times", "settles"), [(1, True), (99, False)])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, settles: bool
) -> None:
    """Half of one version and half of another is never a document: read again, then a row."""
    found = put(tmp_path, b"x" * 100_000)
    monkeypatch.setattr(os, "read", Writer(found.file, times))
    row = read(found)

    assert isinstance(row, Document) is settles
    if isinstance(row, Document):
        assert row.sha256 == hashlib.sha256(found.file.read_bytes()).hexdigest()
    else:
        assert (row.outcome, "changed while" in row.reason) == ("unreadable", True)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Every way out closes the file."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    cases = [put(tmp_path, b"x", "a"), put(tmp_path, b"", "b"), put(tmp_path, b"x" * 200, "c")]
    for found in [*cases, Found(path="mem", file=Path("/proc/self/mem"))]:
        read(found, max_bytes=100)
    next(find(tmp_path))

    assert before == len(list(Path("/proc/self/fd").iterdir()))


# --- many files -----------------------------------------------------------------------------------


def test_memory_stays_flat_over_many_files(tmp_path: Path) -> None:
    """5,000 files of 4 KB are 20 MB on disk and one file at a time in memory."""
    for folder in range(50):
        (tmp_path / f"{folder:02}").mkdir()
        for file in range(100):
            (tmp_path / f"{folder:02}/{file:02}.txt").write_bytes(b"ticket " * 585)
    tracemalloc.start()
    rows = sum(isinstance(read(found), Document) for found in find(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert rows == 5_000
    assert peak < 5_000_000


async def test_reading_in_threads_gives_the_same_rows(tmp_path: Path) -> None:
    """``read`` holds no state, so a caller may run many at once."""
    for number in range(40):
        put(tmp_path, f"Ticket {number}: über die Rechnung".encode("cp1252"), f"{number}.txt")
    found = list(find(tmp_path))
    at_once = await asyncio.gather(*(asyncio.to_thread(read, one) for one in found))

    assert [read(one) for one in found] == at_once


def test_every_example_ticket_ends_in_one_row() -> None:
    """The files that come with Earmark show each kind of row that needs no odd file system."""
    rows = [read(one) for name in ("tickets", "odd-files") for one in find(EXAMPLES / name)]
    problems = {row.path: row.outcome for row in rows if isinstance(row, Problem)}
    encodings = {row.encoding for row in rows if isinstance(row, Document)}

    assert len(rows) >= 40
    assert {"empty", "binary"} == set(problems.values())
    assert {"utf-8", "utf-16-le", "cp1252"} == encodings
    assert not [row for row in rows if isinstance(row, Document) and row.note]


def test_the_example_rubric_is_long_enough_to_cache() -> None:
    """P-04: below 4,096 tokens a cache marker is inert, and 20 kB of English are safely above."""
    rubric = (EXAMPLES / "tickets-rubric.md").read_text(encoding="utf-8")
    head = rubric.splitlines()[:40]

    assert len(rubric.encode()) >= 20_000
    for label in ("billing", "bug", "feature", "account", "other"):
        assert sum(line.startswith(f"{label}: ") for line in head) == 1
