"""Paths as printable text: whatever bytes a name holds, it can be shown, stored and told apart."""

from __future__ import annotations

import os
import re

# What must not reach a terminal or a JSON file as it is: control characters, line and paragraph
# separators, marks that reorder the text around them, surrogates (they are not characters).
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_UNDECODED = range(0xDC80, 0xDD00)  # where surrogateescape puts the bytes 0x80 to 0xFF


def printable(path: str) -> str:
    r"""The path as text that can be printed and encoded; different paths stay different.

    A byte that is not UTF-8 becomes ``\xNN``, an unprintable character ``\uNNNN``, and (so that
    neither can be mistaken for a name that is spelled that way) a backslash ``\\``.
    """
    if os.name == "posix":
        path = path.replace("\\", "\\\\")
    return _UNPRINTABLE.sub(_escape, path)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    if os.name == "posix" and code in _UNDECODED:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}"
