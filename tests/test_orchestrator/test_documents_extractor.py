"""Text out of PDF, Word, HTML, e-mail and gzip: told by content, within limits, each file with one outcome."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.documents import Document, DocumentError, Extractor, Problem, read
from orchestrator.documents.extraction_child import extract
from orchestrator.documents.kinds import kind_of

from .papers import docx, locked_pdf, mail, page, pdf, zipped
from .test_documents_read import put


@pytest.fixture(scope="module")
def extractor() -> Iterator[Extractor]:
    """One process for all tests that don't break it."""
    with Extractor(max_pages=3, max_file_bytes=200_000) as one:
        yield one


Reader = Callable[..., Document | Problem]


@pytest.fixture
def of(tmp_path: Path, extractor: Extractor) -> Reader:
    """Reads some bytes as a file with a name that says nothing."""

    def read_it(
        content: bytes, name: str = "file.txt", max_bytes: int = 10_000
    ) -> Document | Problem:
        return read(put(tmp_path, content, name), max_bytes=max_bytes, extractor=extractor)

    return read_it


_INSERTED = (
    '<w:p><w:ins w:id="1" w:author="A"><w:r><w:t>new</w:t></w:r></w:ins></w:p>'
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>cell</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
)


@pytest.mark.parametrize(
    ("content", "encoding", "text"),
    [
        pytest.param(pdf("Invoice 7", "Page two"), "pdf", "Invoice 7\n\nPage two", id="pdf"),
        pytest.param(locked_pdf("", "For all"), "pdf", "For all", id="pdf without a password"),
        pytest.param(docx("First", "Second"), "docx", "First\n\nSecond", id="docx"),
        pytest.param(docx(body=_INSERTED), "docx", "new\n\ncell", id="docx with a table"),
        pytest.param(page("<p>Hello <b>you</b></p>"), "html", "Title\nHello you", id="html"),
        pytest.param(
            page("<p>Привет", charset="windows-1251"), "html", "Title\nПривет", id="html cp1251"
        ),
        pytest.param(
            page("<script>if (a < b) x()</script><pre>a\n b</pre><br/>c"),
            "html",
            "Title\na\nb\nc",
            id="html with a script",
        ),
        pytest.param(
            b"<!-- note --><HTML><svg>hidden<svg></svg></svg><td>a</td><td>b",
            "html",
            "a b",
            id="html in pieces",
        ),
        pytest.param(gzip.compress(b"a") + gzip.compress(b"b"), "gzip, utf-8", "ab", id="gzip"),
        pytest.param(gzip.compress(pdf("Packed")), "gzip, pdf", "Packed", id="pdf in gzip"),
    ],
)
def test_text_is_taken_out(of: Reader, content: bytes, encoding: str, text: str) -> None:
    """F-03: what a file is, its content says; its name says nothing."""
    document = of(content)
    assert isinstance(document, Document), document
    assert (document.encoding, document.text) == (encoding, text)
    assert document.bytes == len(content)


def test_mail_has_its_header_its_text_and_what_is_attached(of: Reader) -> None:
    """Plain text is preferred, HTML becomes text, attached mails are read to a depth."""
    deep = mail("innermost")
    for level in range(5):
        deep = mail(f"<p>level {level}", html=True, attached=[deep])
    document = of(deep, "x.bin")
    assert isinstance(document, Document)
    assert document.encoding == "eml"
    assert document.text.startswith("From: Ada <ada@example.com>\nTo: support@example.com\n")
    assert "Subject: Grüße" in document.text
    assert "level 4" in document.text
    assert "level 1" in document.text
    assert "level 0" not in document.text
    assert "[attachment: a further e-mail]" in document.text


@pytest.mark.parametrize(
    ("content", "outcome", "says"),
    [
        pytest.param(pdf(*"abcd"), "too_large", "4 pages, the limit is 3", id="long pdf"),
        pytest.param(pdf(""), "unreadable", "a scan?", id="scan"),
        pytest.param(locked_pdf("secret", "x"), "unreadable", "encrypted", id="locked pdf"),
        pytest.param(pdf("x")[:150], "unreadable", "damaged", id="cut pdf"),
        pytest.param(b"%PDF-1.7\n" + bytes(range(256)), "unreadable", "a PDF", id="no pdf"),
        pytest.param(pdf("word " * 9_000), "too_large", "10,000 bytes of text", id="much text"),
        pytest.param(docx(" "), "empty", "white space", id="empty docx"),
        pytest.param(zipped("a.txt"), "binary", "a zip archive", id="zip"),
        pytest.param(zipped("word/document.xml"), "unreadable", "Word", id="docx of nothing"),
        pytest.param(gzip.compress(bytes(10**8)), "too_large", "at least", id="gzip bomb"),
        pytest.param(gzip.compress(b"x" * 50)[:-9], "unreadable", "cut off", id="cut gzip"),
        pytest.param(b"\x1f\x8b\x08" + bytes(99), "unreadable", "damaged", id="no gzip"),
        pytest.param(gzip.compress(gzip.compress(b"x")), "binary", "in a gzip file", id="twice"),
        pytest.param(gzip.compress(b"\x7fELF" + bytes(99)), "binary", "an ELF", id="binary gzip"),
        pytest.param(gzip.compress(b""), "empty", "no content", id="empty gzip"),
        pytest.param(pdf("x") + bytes(300_000), "too_large", "300,", id="large file"),
        pytest.param(b"<html><script>x()</script></html>", "empty", "white space", id="empty page"),
    ],
)
def test_what_has_no_text_is_one_outcome(
    of: Reader, content: bytes, outcome: str, says: str
) -> None:
    """F-06: pages are counted first; bombs, locks and damage each end in a sentence, and in bounded time."""
    problem = of(content)
    assert isinstance(problem, Problem), problem
    assert problem.outcome == outcome, problem.reason
    assert says in problem.reason
    assert "\n" not in problem.reason


@pytest.mark.parametrize(
    "text",
    [
        "Subject: lunch\nFrom: me\n\nShall we?",
        "Format: https://www.debian.org/doc\nUpstream-Name: x\n\nFiles: *",
        "To: do\n- buy milk",
        "<p>a fragment, as in a template</p>",
        "PK is how zip files begin",
        "The tag <html> begins a page.",
    ],
)
def test_honest_text_stays_as_it_is(of: Reader, text: str) -> None:
    """What only looks a little like mail or a web page is text."""
    document = of(text.encode())
    assert isinstance(document, Document)
    assert (document.text, document.encoding) == (text, "utf-8")


def test_without_an_extractor_nothing_is_taken_out(tmp_path: Path) -> None:
    """Binary formats stay binary, text formats stay text: no process is started behind anyone's back."""
    assert isinstance(read(put(tmp_path, pdf("x"))), Problem)
    plain = read(put(tmp_path, page("<p>x")))
    assert isinstance(plain, Document)
    assert "<p>" in plain.text


# ---- the process --------------------------------------------------------------------------------------


def test_a_file_that_takes_too_long_does_not_hold_up_the_next(tmp_path: Path) -> None:
    """Its process is ended, and the next file gets a new one."""
    with Extractor(timeout_s=0.001) as extractor:
        late = read(put(tmp_path, pdf("a")), extractor=extractor)
        assert isinstance(late, Problem)
        assert late.outcome == "unreadable"
        assert "within 0.001 seconds" in late.reason
        extractor._timeout_s = 30
        assert isinstance(read(put(tmp_path, pdf("b")), extractor=extractor), Document)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of address space")
def test_a_file_that_needs_too_much_memory_is_one_outcome(tmp_path: Path) -> None:
    """A small file that becomes a large tree ends in a sentence, and the next file is read."""
    bomb = docx(body="<w:p><w:r><w:t>x</w:t></w:r></w:p>" * 600_000)
    assert len(bomb) < 200_000
    with Extractor(memory_bytes=90 * 1024 * 1024) as extractor:
        problem = read(put(tmp_path, bomb), extractor=extractor)
        assert isinstance(problem, Problem)
        assert problem.outcome in {"too_large", "unreadable"}
        assert isinstance(read(put(tmp_path, docx("b")), extractor=extractor), Document)


def test_a_word_document_that_expands_too_far_is_not_opened(of: Reader) -> None:
    """By what its directory says."""
    problem = of(docx(body="<w:p/>" + " " * (70 * 1024 * 1024)))
    assert isinstance(problem, Problem)
    assert (problem.outcome, "expands to 73," in problem.reason) == ("too_large", True)


def test_a_process_that_died_is_replaced(tmp_path: Path) -> None:
    """Whoever killed it."""
    with Extractor() as extractor:
        # Texts that no other test has had read: those are remembered for the whole process.
        assert isinstance(read(put(tmp_path, docx("it died")), extractor=extractor), Document)
        assert extractor._child is not None
        extractor._child.kill()
        extractor._child.wait()
        assert isinstance(read(put(tmp_path, docx("replaced")), extractor=extractor), Document)


def test_a_large_program_keeps_its_process(tmp_path: Path) -> None:
    """The peak of the memory of whoever started it is not taken for its own."""
    code = (
        "import pathlib, sys\n"
        "from orchestrator.documents import Extractor, find, read\n"
        "ballast = bytearray(700 * 2**20)\n"
        "ballast[::4096] = b'x' * len(ballast[::4096])\n"
        "with Extractor() as extractor:\n"
        "    for found in find(sys.argv[1]):\n"
        "        read(found, extractor=extractor)\n"
        "    assert extractor._child is not None\n"
    )
    (tmp_path / "a.docx").write_bytes(docx("in a large program"))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_process_ends_when_it_is_closed(tmp_path: Path) -> None:
    """No child is left over, and a file seen before needs no new one."""
    extractor = Extractor()
    read(put(tmp_path, docx("it ends")), extractor=extractor)
    assert extractor._child is not None
    pid = extractor._child.pid
    extractor.close()
    extractor.close()
    assert not psutil.pid_exists(pid)
    assert isinstance(read(put(tmp_path, docx("it ends")), extractor=extractor), Document)
    assert extractor._child is None


@pytest.mark.parametrize(("kind", "library"), [("pdf", "pypdf"), ("docx", "mammoth")])
def test_a_library_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, library: str
) -> None:
    """With the extra to install."""
    monkeypatch.setitem(sys.modules, library, None)
    content = pdf("x") if kind == "pdf" else docx("x")
    answer = extract(kind, content, max_pages=9, max_bytes=999)
    assert answer["outcome"] == "unreadable"
    assert 'pip install "earmark[documents]"' in answer["reason"]


@pytest.mark.parametrize("limit", ["max_pages", "max_file_bytes", "timeout_s", "memory_bytes"])
def test_a_senseless_limit_is_refused(limit: str) -> None:
    """At once."""
    with pytest.raises(DocumentError, match="1 or more"):
        Extractor(**{limit: 0})


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", ""),
        (b"%PDF-1", "pdf"),
        (b"\xef\xbb\xbf<!DOCTYPE html>", "html"),
        (b"<?xml version='1.0'?><html>", "html"),
        (b"<?xml version='1.0'?><svg>", ""),
        (b"Received: x\r\nSubject: y\r\n\r\n", "eml"),
        (b"Received: x\r\n\r\n", ""),
        pytest.param(docx("x")[:-30], "docx", id="cut docx"),
        pytest.param(zipped("x"), "", id="zip"),
    ],
)
def test_kinds_are_told_by_content(content: bytes, kind: str) -> None:
    """Also by a beginning, or without the end."""
    assert kind_of(content) == kind
