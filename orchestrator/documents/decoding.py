"""Bytes to text: byte order marks, UTF-16 and UTF-8 by their structure, then old code pages.

Never raises. What is not text by its structure comes back as ``NotText``; formats that are known
by their first bytes are ``signatures``' part.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from . import codepages

_LOST = "\ufffd"  # what stands for a byte sequence that is no character
_CONTROLS = bytes([*range(9), 11, *range(14, 27), *range(28, 32), 127])  # not tab, line, page, ESC
_CONTROL_SHARE_MAX = 0.02
_LOST_SHARE_MAX = 0.05
_LAYOUT = frozenset("\t\n\f\r\x1b\u00a0\u3000\u200b\u200c\u200d\u200e\u200f\ufeff\u2028\u2029")
_MARKS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Every text of some length has these: ASCII, CJK punctuation and full-width forms.
_COMMON = re.compile("[\t\n\r -~\u3000-\u303f\uff00-\uffef]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Text, the encoding it was in, and how many characters had to be replaced."""

    text: str
    encoding: str
    replaced: int = 0

    @property
    def note(self) -> str:
        """One sentence if anything was replaced, else ``""``."""
        if not self.replaced:
            return ""
        what = "1 character was" if self.replaced == 1 else f"{self.replaced:,} characters were"
        name = self.encoding.rpartition(", ")[2]  # after the packing that it was in
        return f"{what} not valid {name} and replaced by \ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotText:
    """Why the bytes are no text, in one sentence."""

    reason: str


def decode(data: bytes) -> Decoded | NotText:
    """The text in some bytes, as well as can be told."""
    marked = _marked(data)
    if marked is not None:
        return marked
    controls = len(data) - len(data.translate(None, _CONTROLS))
    if controls:
        wide = _wide(data, controls)
        if wide is not None:
            return wide
        if controls == data.count(0) == len(data):
            return NotText(reason="the file holds only zero bytes")
        share = controls / len(data)
        if share > _CONTROL_SHARE_MAX:
            return NotText(reason=f"not text: {share:.0%} of its bytes are control codes")
    return _narrow(data, controls)


def _marked(data: bytes) -> Decoded | NotText | None:
    """Text after a byte order mark."""
    for mark, encoding in _MARKS:
        if not data.startswith(mark):
            continue
        decoded = _forced(data[len(mark) :], encoding)
        odd = decoded.replaced + sum(1 for _ in _odd(decoded.text))
        sound = odd <= max(1, len(decoded.text) * _LOST_SHARE_MAX)
        if sound:
            return _without_zeros(decoded)
        if not encoding.startswith("utf-32"):  # whose mark may be UTF-16 that begins with a zero
            name = encoding[:6].rstrip("-").upper()
            return NotText(reason=f"not text: it begins like {name}, but is not")
    return None


def _wide(data: bytes, controls: int) -> Decoded | None:
    """UTF-16 or UTF-32 without a mark, which show as control codes (or zeros) between letters."""
    if controls / len(data) < 0.2 and _is_utf8(data):
        return None  # a text with an odd control code in it
    texts = []
    for encoding in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if not text or next(_odd(text), ""):
            continue
        if sum(1 for _ in _COMMON.finditer(text)) * 100 >= len(text):
            texts.append(Decoded(text=text, encoding=encoding))
    # In the wrong byte order the characters scatter over all of Unicode.
    return min(texts, key=lambda one: len({ord(c) >> 8 for c in one.text}), default=None)


def _odd(text: str) -> Iterator[str]:
    """Characters that texts don't have: control codes, private and unassigned ones."""
    return (one for one in text if not one.isprintable() and one not in _LAYOUT)


def _narrow(data: bytes, controls: int) -> Decoded | NotText:
    """UTF-8 or, if it is not, what the old code pages make of it."""
    if b"\x1b$" in data:  # Japanese mail; looks like ASCII
        try:
            return Decoded(text=data.decode("iso2022_jp"), encoding="iso2022_jp")
        except UnicodeDecodeError:
            pass
    decoded = _forced(data, "utf-8")
    if not decoded.replaced:
        return _without_zeros(decoded)
    # Sequences of several bytes that fit UTF-8 are no accident: a few odd bytes (a file cut in
    # the middle, one name pasted from elsewhere) don't turn the whole text into another encoding.
    sound = sum(1 for character in decoded.text if character > "\x7f") - decoded.replaced
    if sound >= 4 * decoded.replaced:
        return _without_zeros(decoded)
    if controls and b"\x00" in data:
        return NotText(reason="not text: it holds zero bytes and is not Unicode")
    decoded = _forced(data, codepages.guess(data))
    if decoded.replaced > max(1, len(decoded.text) * _LOST_SHARE_MAX):
        return NotText(reason="not text in any encoding that is known here")
    return decoded


def _forced(data: bytes, encoding: str) -> Decoded:
    codec = encoding.removesuffix("-sig")
    try:
        return Decoded(text=data.decode(codec), encoding=encoding)
    except UnicodeDecodeError:
        text = data.decode(codec, "replace")
    honest = data.count(_LOST.encode(codec)) if codec.startswith("utf") else 0
    return Decoded(text=text, encoding=encoding, replaced=max(1, text.count(_LOST) - honest))


def _without_zeros(decoded: Decoded) -> Decoded:
    """Zero characters are legal UTF-8, but databases and services choke on them."""
    zeros = decoded.text.count("\x00")
    if not zeros:
        return decoded
    text = decoded.text.replace("\x00", _LOST)
    return Decoded(text=text, encoding=decoded.encoding, replaced=decoded.replaced + zeros)


def _is_utf8(data: bytes) -> bool:
    return not _forced(data, "utf-8").replaced
