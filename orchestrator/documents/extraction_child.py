"""The process that takes text out of files: PDF, Word, HTML and e-mail, one after the other from a pipe.

It stands alone, so that it starts quickly, can be bounded in memory, and can be killed: what people send
holds bombs and endless loops. ``extractor`` is the other end of the pipe. It is started by its path and
imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from html.parser import HTMLParser
from typing import Any

_EXPANDED_MAX = 64 * 1024 * 1024
_NESTED_MAIL_MAX = 3
_PARTS_MAX = 200
_BLOCKS = {
    *("address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl", "dt"),
    *("fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("header", "hr", "li", "main", "nav", "ol", "option", "p", "pre", "section", "table"),
    *("title", "tr", "ul"),
}
_UNSEEN = {"script", "style", "template", "noscript", "iframe", "object", "svg", "math"}
_BREAK = "\x00"


class Refused(Exception):
    """This file has no text to give: outcome and sentence."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


def extract(kind: str, content: bytes, *, max_pages: int, max_bytes: int) -> dict[str, Any]:
    """The text of a file as ``{"text"}``, or ``{"outcome", "reason"}``; never raises.

    ``last`` says that memory ran out: the process is of no more use.

    Args:
        kind: ``pdf``, ``docx``, ``html`` (as UTF-8) or ``eml``.
        content: the file.
        max_pages: a PDF with more pages is ``too_large``.
        max_bytes: a text with more bytes of UTF-8 is ``too_large``.
    """
    room = Room(max_pages, max_bytes)
    try:
        return {"text": _KINDS[kind](content, room)}
    except Refused as error:
        return {"outcome": error.outcome, "reason": str(error)}
    except ImportError:
        reason = 'reading it takes a further library: pip install "earmark[documents]"'
        return {"outcome": "unreadable", "reason": reason}
    except MemoryError:
        reason = "taking its text out needs too much memory"
        return {"outcome": "too_large", "reason": reason, "last": True}
    except RecursionError:
        return {"outcome": "unreadable", "reason": "it is nested too deeply"}
    except Exception as error:  # noqa: BLE001 - what libraries raise over broken files has no end
        said = " ".join(str(error).split())[:120]
        return {"outcome": "unreadable", "reason": f"damaged: {said or type(error).__name__}"}


class Room:
    """How much text and how many pages there may be."""

    def __init__(self, max_pages: int, max_bytes: int) -> None:
        self.max_pages = max_pages
        self._max_bytes = max_bytes
        self._bytes = 0

    def take(self, text: str) -> str:
        """Count a piece of text.

        Raises:
            Refused: it is too much.
        """
        self._bytes += len(text.encode("utf-8", "replace"))
        if self._bytes > self._max_bytes:
            raise Refused(
                "too_large",
                f"more than {self._max_bytes:,} bytes of text; split it, or raise max_bytes",
            )
        return text


def _pdf(content: bytes, room: Room) -> str:
    from pypdf import PasswordType, PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise Refused("unreadable", "a PDF that is encrypted; save it without a password")
    pages = len(reader.pages)
    if pages > room.max_pages:
        raise Refused(
            "too_large",
            f"a PDF of {pages:,} pages, the limit is {room.max_pages:,}; split it, or raise max_pages",
        )
    texts = [room.take(page.extract_text()) for page in reader.pages]
    if not any(text.strip() for text in texts):
        raise Refused(
            "unreadable",
            f"a PDF of {pages:,} page{'s' if pages != 1 else ''} without text (a scan?); run OCR on it first",
        )
    return "\n\n".join(text.strip() for text in texts)


def _docx(content: bytes, room: Room) -> str:
    import mammoth  # type: ignore[import-untyped]

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = [part for part in archive.infolist() if part.filename.endswith((".xml", ".rels"))]
        expanded = sum(part.file_size for part in parts)
        if expanded > _EXPANDED_MAX:
            raise Refused(
                "too_large",
                f"a Word document that expands to {expanded:,} bytes; the limit is {_EXPANDED_MAX:,}",
            )
    text = mammoth.extract_raw_text(io.BytesIO(content)).value
    return room.take(re.sub(r"\n{3,}", "\n\n", text).strip())


def _html(content: bytes, room: Room) -> str:
    page = _Page()
    page.feed(content.decode("utf-8", "replace").replace(_BREAK, " "))
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.pieces).split(_BREAK))
    return room.take("\n".join(line for line in lines if line))


class _Page(HTMLParser):
    """What of a page is read: its words, with breaks where blocks begin and end. No tree is built."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unseen = ""
        self._depth = 0
        self._is_pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A block begins a line; what is not shown is passed over until it ends."""
        del attrs
        if self._unseen:
            self._depth += tag == self._unseen
        elif tag in _UNSEEN:
            self._unseen, self._depth = tag, 1
        elif tag in _BLOCKS:
            self.pieces.append(_BREAK)
            self._is_pre |= tag == "pre"
        elif tag in {"td", "th"}:
            self.pieces.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """``<br/>``: it has no end to wait for."""
        if not self._unseen and tag not in _UNSEEN:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """A block ends its line."""
        if self._unseen:
            self._depth -= tag == self._unseen
            # A page that forgets to close them still has a body.
            if self._depth == 0 or tag in {"head", "body"}:
                self._unseen = ""
        elif tag in _BLOCKS:
            self.pieces.append(_BREAK)
            self._is_pre &= tag != "pre"

    def handle_data(self, data: str) -> None:
        """Words; in ``pre`` the lines are kept."""
        if not self._unseen:
            self.pieces.append(data.replace("\n", _BREAK) if self._is_pre else data)


def _eml(content: bytes, room: Room) -> str:
    message = message_from_bytes(content, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return "\n".join(_lines_of_mail(message, room, 0)).strip()


def _lines_of_mail(message: EmailMessage, room: Room, depth: int) -> Iterator[str]:
    """Header, text and attached mails; other attachments by name."""
    for name in ("From", "To", "Cc", "Date", "Subject"):
        with contextlib.suppress(Exception):  # a header that can't be read is left out
            value = message.get(name)
            if value:
                yield room.take(f"{name}: {' '.join(str(value).split())}")
    yield ""
    body = message.get_body(("plain", "html"))
    if body is not None:
        text = _text_of_part(body)
        if body.get_content_type() == "text/html":
            text = _html(text.encode("utf-8", "replace"), room)
        yield room.take(text.strip())
    for number, part in enumerate(message.iter_attachments()):
        if number >= _PARTS_MAX:
            raise Refused("too_large", f"an e-mail with more than {_PARTS_MAX} attachments")
        if part.get_content_type() != "message/rfc822":
            yield room.take(f"[attachment: {part.get_filename() or part.get_content_type()}]")
            continue
        if depth >= _NESTED_MAIL_MAX:
            yield "[attachment: a further e-mail]"
            continue
        inner = part.get_payload(0)
        yield "\n[attached e-mail]"
        if isinstance(inner, EmailMessage):
            yield from _lines_of_mail(inner, room, depth + 1)


def _text_of_part(part: Any) -> str:
    payload: bytes = part.get_payload(decode=True) or b""
    for charset in (part.get_content_charset(), "utf-8"):
        if charset:
            with contextlib.suppress(LookupError, UnicodeDecodeError):
                return payload.decode(charset)
    return payload.decode("cp1252", "replace")


_KINDS: dict[str, Callable[[bytes, Room], str]] = {
    "pdf": _pdf,
    "docx": _docx,
    "html": _html,
    "eml": _eml,
}


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _peak() -> int:
    """The most bytes that were resident at once; on Linux those of the process that started this one, too."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _is_swollen(limit: int, peak_before: int) -> bool:
    """Whether memory came near its limit: what is left of it is in pieces, and the next file would suffer.

    Args:
        limit: bytes.
        peak_before: ``_peak()`` when this process began, which a large parent passes on.
    """
    return _peak() > max(limit // 2, peak_before)


def serve(memory_bytes: int) -> None:
    """Answer one request after the other, until the pipe is closed."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    _limit_memory(memory_bytes)
    peak_before = _peak()
    while header := source.readline():
        request = json.loads(header)
        content = source.read(request["size"])
        answer = extract(
            request["kind"],
            content,
            max_pages=request["max_pages"],
            max_bytes=request["max_bytes"],
        )
        del content
        if _is_swollen(memory_bytes, peak_before):
            answer["last"] = True
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(int(sys.argv[1]))
