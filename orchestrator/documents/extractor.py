"""The extractor: takes text out of PDF, Word, HTML and e-mail in a process of its own, within limits.

What the process does is in ``extraction_child``. Whatever a file makes it do (loop, eat memory, crash) ends
as that file's outcome, and the next file gets a new process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import threading
import zlib
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from .kinds import NAMES
from .record import DocumentError, ProblemOutcome, Refused

MAX_PAGES = 100
"""Pages of a PDF unless the caller says otherwise: what the API takes of one with a small context window
(facts of 2026-08; see the API's page on PDF support)."""

MAX_FILE_BYTES = 32 * 1024 * 1024
"""The largest file that text is taken out of: what the API takes as one request."""

_TIMEOUT_S = 30.0
_MEMORY_BYTES = 1024 * 1024 * 1024
_KEPT_BYTES = 16 * 1024 * 1024
_CHILD = Path(__file__).with_name("extraction_child.py")
_NO_CHARACTER = re.compile("[\x00\ud800-\udfff]")


class Extractor:
    """Text of files that are not text. For one thread at a time or several; close it, or use ``with``.

    A folder is looked at twice (what will it cost, then do it): texts are kept, compressed, up to 16 MiB.

    Args:
        max_pages: a PDF with more pages is ``too_large``; they are counted before anything else.
        max_file_bytes: a larger file is ``too_large``.
        timeout_s: seconds that one file may take.
        memory_bytes: address space of the process (where the system can limit it).

    Raises:
        DocumentError: a limit below 1.
    """

    def __init__(
        self,
        *,
        max_pages: int = MAX_PAGES,
        max_file_bytes: int = MAX_FILE_BYTES,
        timeout_s: float = _TIMEOUT_S,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        if min(max_pages, max_file_bytes, timeout_s, memory_bytes) <= 0:
            raise DocumentError("limits of an extractor must be 1 or more.")
        self.max_pages = max_pages
        self.max_file_bytes = max_file_bytes
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0

    def text(self, kind: str, content: bytes, *, max_bytes: int) -> str | Refused:
        """The text of a file.

        Args:
            kind: of ``kinds.Kind``, not ``gzip``.
            content: the file; HTML as UTF-8.
            max_bytes: of text; more is ``too_large``.
        """
        name = hashlib.sha256(f"{kind}:{max_bytes}:".encode() + content).digest()
        with self._lock:
            kept = self._kept.get(name)
            answer = json.loads(zlib.decompress(kept)) if kept else None
            if answer is None:
                answer = self._asked(kind, content, max_bytes)
                self._keep(name, answer)
        if "text" in answer:
            return _NO_CHARACTER.sub("\ufffd", answer["text"])
        outcome = cast("ProblemOutcome", answer["outcome"])
        reason = answer["reason"]
        named = reason if reason.startswith(NAMES[kind]) else f"{NAMES[kind]}: {reason}"
        return Refused(outcome=outcome, reason=named)

    def _asked(self, kind: str, content: bytes, max_bytes: int) -> dict[str, Any]:
        request = {
            "kind": kind,
            "size": len(content),
            "max_pages": self.max_pages,
            "max_bytes": max_bytes,
        }
        child = self._ready()
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self._timeout_s, give_up)
        timer.daemon = True
        timer.start()
        line = b""
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.write(content)
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            pass  # it died; said below
        finally:
            timer.cancel()
        if line.endswith(b"\n") and not late.is_set():
            answer: dict[str, Any] = json.loads(line)
            if answer.pop("last", False):
                self._end()
            return answer
        self._end()
        reason = "taking its text out ended in a crash; it is probably damaged"
        if late.is_set():
            reason = f"its text could not be taken out within {self._timeout_s:g} seconds"
        return {"outcome": "unreadable", "reason": reason}

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD), str(self._memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Ctrl-C of a terminal is this process's matter, which closes the child when it is done.
                start_new_session=True,
            )
        return self._child

    def _keep(self, name: bytes, answer: dict[str, Any]) -> None:
        packed = zlib.compress(json.dumps(answer).encode(), 1)
        if len(packed) * 4 > _KEPT_BYTES:
            return
        self._kept[name] = packed
        self._kept_bytes += len(packed)
        while self._kept_bytes > _KEPT_BYTES:  # each turn drops one
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # bytes that it did not take any more
                    pipe.close()
        child.wait()

    def close(self) -> None:
        """End the process; may be called twice, and it starts again when it is needed."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
