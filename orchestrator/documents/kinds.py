"""Kinds of files that text can be taken out of, told by their content, whatever their names say."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Literal

from .signatures import HEAD_BYTES

Kind = Literal["pdf", "docx", "gzip", "html", "eml", ""]

#: In words, for sentences.
NAMES: dict[str, str] = {
    "pdf": "a PDF",
    "docx": "a Word document",
    "gzip": "a gzip file",
    "html": "an HTML page",
    "eml": "an e-mail",
}
_WORD_PART = "word/document.xml"
_HTML = re.compile(
    rb"(?:\s|<\?xml[^>]{0,200}\?>|<!--.{0,2000}?-->)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_HEADER = re.compile(rb"(?:[!-9;-~]+:[^\r\n]*\r?\n(?:[ \t][^\r\n]*\r?\n)*)+(?=\r?\n|$)")
_FIELD = re.compile(rb"^([!-9;-~]+):", re.MULTILINE)
#: Fields that only mail has; and those that a note to a colleague may begin with, too.
_OF_MAIL = {b"message-id", b"received", b"mime-version", b"return-path", b"delivered-to"}
_OF_LETTERS = {b"from", b"to", b"subject", b"date"}
_MAIL_HEAD_BYTES = 64 * 1024


def kind_of(content: bytes) -> Kind:
    """The kind of a file, by its content.

    A zip archive is a Word document if it has the part that makes one; where its directory is cut off, if
    that part's name is in it.
    """
    head = content[:HEAD_BYTES].removeprefix(b"\xef\xbb\xbf")
    if head.startswith(b"%PDF-"):
        return "pdf"
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"PK\x03\x04"):
        return "docx" if _is_word(content) else ""
    if _HTML.match(head):
        return "html"
    return "eml" if _is_mail(content[:_MAIL_HEAD_BYTES]) else ""


def may_be_larger(head: bytes) -> bool:
    """Whether a file that begins so may be larger than the text that is in it."""
    return head.startswith(b"PK\x03\x04") or kind_of(head) != ""


def _is_word(content: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _WORD_PART in archive.namelist()
    except Exception:  # noqa: BLE001 - a damaged archive raises whatever it likes
        return _WORD_PART.encode() in content


def _is_mail(head: bytes) -> bool:
    header = _HEADER.match(head)
    if header is None:
        return False
    names = {name.lower() for name in _FIELD.findall(header.group())}
    return bool(names & _OF_MAIL) and bool(names & _OF_LETTERS)
