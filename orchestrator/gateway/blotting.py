"""Blotting: the upstream's key never leaves with an answer; where one says it, it is blotted out as the bytes go by.

An upstream that echoes a request, in an error body or a header, would hand the key to every client and to the
ledger's notes. Bytes in which the key does not occur pass as they are, and none is kept for longer than it takes to
see that it does not begin the key.

What is looked for is the key as it is, and as a JSON string may spell it, with escapes for any of its characters.
An upstream that spells it otherwise (in base64, or a piece in one event and a piece in the next) is not looked through.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from dataclasses import dataclass

from orchestrator.encodings import Decoder, Unreadable, decoder_of

logger = logging.getLogger("earmark")

#: Shorter ones are stand-ins ("simulated"), and words that occur in any text.
_SHORTEST = 12
#: How every escape begins that a character of a key can have.
_ESCAPE = b"\\u00"
#: The longest of a character's spellings.
_LONGEST = 6
_PLAIN = frozenset({"", "identity"})


class Blot:
    """Knows the key, and puts as many asterisks in its place, so that lengths stay right.

    Args:
        secret: the upstream's key; one of less than 12 characters is none.
    """

    def __init__(self, secret: str) -> None:
        # As it is, and as a JSON string has it.
        forms = {secret, json.dumps(secret)[1:-1]} if len(secret) >= _SHORTEST else set()
        self._forms = tuple(form.encode() for form in forms)
        self._letters = tuple(_spellings(letter) for letter in secret) if self._forms else ()
        letters = [b"(?:%b)" % b"|".join(map(re.escape, letter)) for letter in self._letters]
        self._spelt = re.compile(b"".join(letters))
        # Where the key may begin, by its first two characters or as many as there are: a single byte, looking ahead.
        starts = [
            rb"%b(?=%b(?:%b|.{0,5}\Z)|.{0,4}\Z)"
            % (re.escape(one[:1]), re.escape(one[1:]), letters[1])
            for letter in self._letters[:1]
            for one in letter
        ]
        self._start = re.compile(b"|".join(starts), re.DOTALL)
        self._was_said = False

    def __repr__(self) -> str:
        return "Blot()"

    def blotted(self, data: bytes) -> bytes:
        """The same bytes without the key; the very same object where it does not occur."""
        for form in self._forms:
            if form in data:
                data = data.replace(form, b"*" * len(form))
                self._say()
        if self._forms and _ESCAPE in data:
            blotted, count = self._spelt.subn(lambda found: b"*" * len(found[0]), data)
            if count:
                data = blotted
                self._say()
        return data

    def occurs(self, data: bytes) -> bool:
        """Whether the key is in there."""
        if any(form in data for form in self._forms):
            return True
        return bool(self._forms) and _ESCAPE in data and self._spelt.search(data) is not None

    def open_end(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of the key."""
        most = max((_overlap(data, form) for form in self._forms), default=0)
        return max(most, self._open_spelt(data[-_LONGEST * len(self._letters) :]))

    def _open_spelt(self, tail: bytes) -> int:
        """The same for spellings with escapes."""
        if not self._letters or b"\\" not in tail:
            return 0
        starts = (found.start() for found in self._start.finditer(tail))
        return next((len(tail) - at for at in starts if self._begins(tail, at)), 0)

    def _begins(self, data: bytes, at: int) -> bool:
        """Whether all of ``data`` from here on is a beginning of the key, short of all of it."""
        for letter in self._letters:
            rest = data[at : at + _LONGEST]
            found = next((one for one in letter if rest.startswith(one)), b"")
            if not found:
                return any(one.startswith(rest) for one in letter)
            at += len(found)
        return False

    def _say(self) -> None:
        if not self._was_said:
            self._was_said = True
            logger.error(
                "gateway: the upstream sent its own key back in an answer; it was blotted out (this is said once)"
            )


def _spellings(letter: str) -> tuple[bytes, ...]:
    """One character of the key as it may stand in a JSON string, the longest first."""
    escaped = f"\\u{ord(letter):04x}"
    short = "\\/" if letter == "/" else json.dumps(letter)[1:-1]
    known = {letter, escaped, f"\\u{escaped[2:].upper()}", short}
    return tuple(sorted((one.encode() for one in known), key=len, reverse=True))


def _overlap(data: bytes, form: bytes) -> int:
    """The longest end of ``data`` that ``form`` begins with, short of all of it."""
    at = data.find(form[:1], max(0, len(data) - len(form) + 1))
    while at >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at = data.find(form[:1], at + 1)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What became of a piece of an answer.

    Attributes:
        client: bytes that may go on.
        plain: what they say, unpacked, for whoever watches; without the key.
        shows: the key came in packed bytes, where it can't be blotted out: nothing may go on any more.
    """

    client: bytes
    plain: bytes
    shows: bool = False


class Passage:
    """One answer on its way through, piece by piece.

    Args:
        blot: what must not pass.
        encoding: the ``content-encoding`` header.
    """

    __slots__ = ("_blot", "_decoder", "_is_plain", "_kept", "_tail")

    def __init__(self, blot: Blot, encoding: str) -> None:
        self._blot = blot
        self._kept = b""
        self._tail = b""
        self._is_plain = encoding.strip().lower() in _PLAIN
        self._decoder: Decoder | None = None
        if not self._is_plain:
            # What nobody can read passes as bytes that say nothing.
            with contextlib.suppress(Unreadable):
                self._decoder = decoder_of(encoding)

    def take(self, piece: bytes) -> Passed:
        """The next piece."""
        return self._bare(piece) if self._decoder is None else self._packed(piece, self._decoder)

    def rest(self) -> Passed:
        """What was kept, now that nothing follows."""
        kept, self._kept = self._kept, b""
        return Passed(client=kept, plain=kept if self._is_plain else b"")

    def _bare(self, piece: bytes) -> Passed:
        data = self._blot.blotted(self._kept + piece if self._kept else piece)
        open_end = self._blot.open_end(data)
        if open_end:
            data, self._kept = data[:-open_end], data[-open_end:]
        else:
            self._kept = b""
        return Passed(client=data, plain=data if self._is_plain else b"")

    def _packed(self, piece: bytes, decoder: Decoder) -> Passed:
        """Packed bytes go on as they are, or not at all: whole pieces are kept while they end as the key begins."""
        try:
            plain = decoder.feed(piece)
        except Unreadable:
            self._decoder = None
            return self._bare(piece)
        seen = self._tail + plain
        if self._blot.occurs(seen):
            self._blot.blotted(seen)  # said in the log
            self._tail = self._kept = b""
            return Passed(client=b"", plain=self._blot.blotted(plain), shows=True)
        open_end = self._blot.open_end(seen)
        self._tail = seen[-open_end:] if open_end else b""
        pieces, self._kept = self._kept + piece, b""
        if open_end:
            pieces, self._kept = b"", pieces
        return Passed(client=pieces, plain=plain)
