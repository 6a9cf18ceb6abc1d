"""The folder contract: a thousand files of every kind, each of which ends in exactly one outcome."""

# ruff: noqa: F811 (the server of the tests beside is a fixture here, too)

from __future__ import annotations

import gzip
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from orchestrator.simulator import Fault, SimulatorThread
from tests.test_orchestrator.papers import docx, locked_pdf, mail, page, pdf, zipped

from .classifying import Proof, arguments
from .conftest import Program
from .test_classify import faults, server  # noqa: F401

FILES = 1_000
TEXT = "Die Rechnung {0} ist falsch; Grüße aus Zürich, 5 € zurück bitte."
_RANDOM = random.Random(7)

Make = Callable[[Path, str], None]


def _bytes(content: Callable[[str], bytes]) -> Make:
    return lambda path, number: _write(path, content(number))


@cache
def _locked(password: str) -> bytes:
    """Made once: keys take a while. What follows the end of a PDF makes another file of it."""
    return locked_pdf(password, "Invoice")


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _sparse(path: Path, _: str) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def _forbidden(path: Path, number: str) -> None:
    _write(path, number.encode())
    path.chmod(0)


def _text(codec: str, mark: bytes = b"") -> Make:
    return _bytes(lambda number: mark + TEXT.format(number).encode(codec))


#: A kind of file: how it is made, and the outcome that it must have.
KINDS: dict[str, tuple[Make, str]] = {
    "utf-8": (_text("utf-8"), "ok"),
    "utf-8 with a mark": (_text("utf-8", b"\xef\xbb\xbf"), "ok"),
    "utf-16": (_text("utf-16"), "ok"),
    "utf-16 without a mark": (_text("utf-16-be"), "ok"),
    "cp1252": (_text("cp1252"), "ok"),
    "one odd byte": (_bytes(lambda n: b"An invoice \xff " + n.encode() + b" plain" * 50), "ok"),
    "markdown": (_bytes(lambda n: f"# Ticket {n}\n\n*crash*".encode()), "ok"),
    "html": (_bytes(lambda n: page(f"<p>Crash {n}", charset="cp1252")), "ok"),
    "pdf": (_bytes(lambda n: pdf(f"Invoice {n}", "Page two")), "ok"),
    "pdf for all": (_bytes(lambda n: _locked("") + b"\n%" + n.encode()), "ok"),
    "docx": (_bytes(lambda n: docx(f"Order {n}")), "ok"),
    "eml": (_bytes(lambda n: mail(f"Login {n}", attached=[mail("inner")])), "ok"),
    "gzip": (_bytes(lambda n: gzip.compress(TEXT.format(n).encode())), "ok"),
    "long pdf": (_bytes(lambda n: pdf(*[f"Page {n}"] * 5)), "too_large"),
    "locked pdf": (_bytes(lambda n: _locked("secret") + b"\n%" + n.encode()), "unreadable"),
    "broken pdf": (_bytes(lambda n: pdf(n)[:200]), "unreadable"),
    "scan": (_bytes(lambda _: pdf("", "")), "unreadable"),
    "broken docx": (_bytes(lambda n: zipped("word/document.xml", n)), "unreadable"),
    "broken zip": (_bytes(lambda n: zipped(*(f"{n}-{i}" for i in range(9)))[:300]), "binary"),
    "gzip bomb": (_bytes(lambda n: gzip.compress(bytes(10**6) + n.encode())), "too_large"),
    "noise": (_bytes(lambda _: _RANDOM.randbytes(600)), "binary"),
    "picture": (_bytes(lambda n: b"\x89PNG\r\n\x1a\n" + bytes(99) + n.encode()), "binary"),
    "empty": (_bytes(lambda _: b""), "empty"),
    "blank": (_bytes(lambda _: b" \r\n\t" * 9), "empty"),
    "huge": (_sparse, "too_large"),
    "large text": (_bytes(lambda n: f"{n} text ".encode() * 9_000), "too_large"),
    "loop": (lambda path, _: path.symlink_to(path.name), "unreadable"),
    "dead link": (lambda path, _: path.symlink_to("nowhere"), "unreadable"),
    "pipe": (lambda path, _: os.mkfifo(path), "unreadable"),
    **({"forbidden": (_forbidden, "unreadable")} if os.geteuid() else {}),  # root may read all
}
#: Names that say something else than the content.
ENDINGS = (".txt", ".pdf", ".docx", ".jpg", "", ".zip", ".eml")


def write_folder(docs: Path) -> dict[str, str]:
    """A thousand files, and the outcome that each must have."""
    expected = {}
    for number in range(FILES):
        name = list(KINDS)[number % len(KINDS)]
        make, outcome = KINDS[name]
        below = docs / f"d{number % 7}" / f"e{number % 3}"
        below.mkdir(parents=True, exist_ok=True)
        path = below / f"{number:04d} {name}{ENDINGS[number % len(ENDINGS)]}"
        make(path, str(number))
        expected[path.relative_to(docs).as_posix()] = outcome
    return expected


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_thousand_files_end_in_a_thousand_rows(
    earmark: Program, folder: Path, server: SimulatorThread
) -> None:
    """Each in its one outcome, some vanishing meanwhile; money, rows and bill agree, and so they do again."""
    expected = write_folder(folder / "docs")
    vanishing = [
        path
        for number, path in enumerate(expected)
        if expected[path] == "ok" and number > FILES - 60
    ]
    assert len(vanishing) > 10

    faults(server, Fault(kind="hang", match="Rechnung 0 ist"))

    def vanish() -> None:
        server.arrived(1)
        for path in vanishing:
            (folder / "docs" / path).unlink()
        server.release()

    thread = threading.Thread(target=vanish)
    thread.start()
    line = (
        *arguments("docs"),
        "--json",
        "--max-pages",
        "4",
        "--max-bytes",
        "50000",
        "--width",
        "8",
    )
    ran = earmark(*line)
    thread.join()
    proof = Proof(where=folder).check(ran.json)
    found = {row["path"]: row["outcome"] for row in proof.rows}
    for path in vanishing:
        expected[path] = "unreadable"
    wrong = {
        path: (found.get(path), want) for path, want in expected.items() if found.get(path) != want
    }
    assert wrong == {}
    assert len(found) == FILES
    assert proof.outcomes == dict(sorted(Counter(expected.values()).items()))
    assert proof.posted == server.bill.nanos
    assert all(bool(row["reason"]) is (row["outcome"] != "ok") for row in proof.rows)
    again = earmark(*line, "--resume")
    gone = {"unreadable": proof.outcomes["unreadable"] - len(vanishing)}
    assert again.json["outcomes"] == {**proof.outcomes, **gone}
    assert proof.posted == server.bill.nanos
