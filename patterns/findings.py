"""Findings: what agents have found, on one board that all of them post to and read through tools.

    board = Board(run, keep=True)
    agent = Agent(name="scout", model="claude-haiku-5-5", tools=board.tools())
    ...
    board.snapshot()  # what holds now, by topic
    board.history()   # all that was ever posted, with author, time and version

What was posted stays; a correction is a further finding that names the one it replaces. A post or a read after the
money of its place is gone raises ``BudgetExceeded``, after a stop ``RunStopped``: that ends the loop of whoever
calls, also one that takes exceptions for results of tools (see ``orchestrator.swallowed``). What is posted then is
kept all the same, since it is paid for.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.arguments import check_whole
from orchestrator.context import current_call
from orchestrator.errors import ConfigError
from orchestrator.run import Run
from orchestrator.tools import BadCall, Tool, tool

from .spent import refuse_if_spent

#: Sources of a finding and characters of each, characters of a topic, and of what one read returns.
SOURCES_MOST, SOURCE_CHARS, TOPIC_CHARS, READ_CHARS = 20, 500, 100, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        version: of the board, after it was posted; names it.
        at: when (UTC, ISO 8601).
        author: the agent that posted it.
        topic, text, sources: as posted.
        replaces: version of the finding that it corrects; 0 if none.
    """

    version: int
    at: str
    author: str
    topic: str
    text: str
    sources: tuple[str, ...] = ()
    replaces: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "sources": list(self.sources)}


class Board:
    """A board. Agents, tasks and threads of a run may use it at the same time.

    Args:
        run: whose journal notes each finding, and whose money ends the work.
        name: of the board, and of its file.
        findings_max: findings that it takes.
        chars_max: characters of one finding.
        keep: write it beside the run's journal, as ``<name>.jsonl``; a resumed run goes on with it.

    Raises:
        ConfigError: a bound below 1, or a run without a folder to keep it in.
    """

    def __init__(
        self,
        run: Run,
        *,
        name: str = "board",
        findings_max: int = 500,
        chars_max: int = 4_000,
        keep: bool = False,
    ) -> None:
        check_whole(f"board {name}", findings_max=findings_max, chars_max=chars_max)
        self.run = run
        self.name = name
        self._most = findings_max
        self._chars = chars_max
        self._lock = threading.Lock()
        self._findings: list[Finding] = []
        self.path = self._place() if keep else None
        if self.path is not None and self.path.exists():
            self._findings = _read(self.path)

    def _place(self) -> Path:
        journal = self.run.folder.journal
        if journal is None:
            raise ConfigError(
                f"board {self.name}: the run has no folder to keep it in; give the Run a ledger in a file, or a folder"
            )
        return journal.with_name(f"{self.name}.jsonl")

    # ---- what is on it --------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """How many findings were posted so far."""
        return len(self._findings)

    def history(self, since: int = 0) -> list[Finding]:
        """All findings after this version, corrected ones included, in order."""
        return self._findings[since:]

    def findings(self, topic: str = "", *, since: int = 0) -> list[Finding]:
        """The findings that hold: of one topic, if it is named, and after a version."""
        found = list(self._findings)
        replaced = {one.replaces for one in found}
        return [
            one
            for one in found[since:]
            if one.version not in replaced and (not topic or one.topic == topic)
        ]

    def snapshot(self) -> dict[str, Any]:
        """What holds now, as plain data: the version, and the findings by topic."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for one in self.findings():
            topics.setdefault(one.topic, []).append(one.to_json())
        return {"board": self.name, "version": self.version, "topics": topics}

    # ---- posting --------------------------------------------------------------------------------

    def post(
        self,
        topic: str,
        text: str,
        sources: Sequence[str] = (),
        *,
        author: str = "",
        replaces: int = 0,
    ) -> Finding:
        """Add a finding; the same text under the same topic is there once.

        Args:
            topic, text, sources, replaces: see ``Finding``.
            author: the agent that calls, by default.

        Raises:
            BadCall: something is too long, missing, or the board is full.
        """
        topic, text = topic.strip(), text.strip()
        self._look_at(topic, text, sources)
        with self._lock:
            known = next((f for f in self._findings if (f.topic, f.text) == (topic, text)), None)
            if known is not None:
                return known
            if not 0 <= replaces <= len(self._findings):
                raise BadCall(f"there is no finding {replaces} to replace")
            if len(self._findings) >= self._most:
                raise BadCall(
                    f"the board is full ({self._most} findings): finish with what is there"
                )
            finding = Finding(
                version=len(self._findings) + 1,
                at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                author=author or current_call().agent,
                topic=topic,
                text=text,
                sources=tuple(sources),
                replaces=replaces,
            )
            self._write(finding)
            self._findings.append(finding)
        self.run.journal.write(
            "finding",
            scope=self.run.here,
            board=self.name,
            agent=finding.author,
            topic=topic,
            version=finding.version,
            chars=len(text),
        )
        return finding

    def post_answer(self, author: str, text: str) -> None:
        """What somebody without tools has answered, as a finding under its name; cut to what one may have.

        A board that is full takes no more: the answer is in its part.
        """
        with contextlib.suppress(BadCall):
            self.post(author[:TOPIC_CHARS], text.strip()[: self._chars], author=author)

    def _look_at(self, topic: str, text: str, sources: Sequence[str]) -> None:
        if not topic or len(topic) > TOPIC_CHARS:
            raise BadCall(f"the topic must have 1 to {TOPIC_CHARS} characters")
        if not text or len(text) > self._chars:
            raise BadCall(f"the text must have 1 to {self._chars} characters")
        if len(sources) > SOURCES_MOST or any(len(one) > SOURCE_CHARS for one in sources):
            raise BadCall(
                f"at most {SOURCES_MOST} sources, each of at most {SOURCE_CHARS} characters"
            )

    def _write(self, finding: Finding) -> None:
        if self.path is None:
            return
        line = json.dumps(finding.to_json(), ensure_ascii=False).encode(errors="backslashreplace")
        with self.path.open("ab+") as file:
            size = file.seek(0, 2)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    line = b"\n" + line  # what a crash cut off ends here
            file.write(line + b"\n")

    # ---- the tools ------------------------------------------------------------------------------

    def tools(self, author: str = "") -> list[Tool]:
        """What ``Agent(tools=...)`` takes: ``post_finding``, ``read_findings``, ``list_topics``.

        Args:
            author: whose posts they are; by default, of the agent that calls.
        """

        async def post_finding(
            topic: str, text: str, sources: list[str] | None = None, replaces: int = 0
        ) -> str:
            """Post one finding to the board that all agents share: a short topic, the finding, and its sources
            (addresses or titles). To correct a finding, give its version as replaces."""
            finding = self.post(topic, text, sources or (), author=author, replaces=replaces)
            self.check()
            return f"posted as version {finding.version}"

        async def read_findings(topic: str = "", since: int = 0) -> dict[str, Any]:
            """Read the findings on the board: of one topic, or of all. since leaves out what you have read: give
            the version of your last read."""
            self.check()
            return self.read(topic, since)

        async def list_topics() -> dict[str, Any]:
            """The topics on the board, with how many findings each has."""
            self.check()
            counts = Counter(one.topic for one in self.findings())
            return {"version": self.version, "topics": dict(counts)}

        return [_tool_of(one) for one in (post_finding, read_findings, list_topics)]

    def read(self, topic: str = "", since: int = 0) -> dict[str, Any]:
        """Findings as a tool returns them; ``more`` if they were cut, then read on from ``version``."""
        shown: list[dict[str, Any]] = []
        size = 0
        for one in self.findings(topic, since=max(since, 0)):
            size += len(one.text) + sum(map(len, one.sources)) + 200
            if shown and size > READ_CHARS:
                return {"version": shown[-1]["version"], "more": True, "findings": shown}
            shown.append(one.to_json())
        return {"version": self.version, "more": False, "findings": shown}

    def sdk_server(self, author: str) -> Any:
        """The same tools as an in-process MCP server for workers of the Agent SDK; see ``board_server``."""
        from .board_server import sdk_server  # the SDK is an extra

        return sdk_server(self.name, self.tools(author))

    def check(self) -> None:
        """Refuse what follows where the run is stopped, or the money of this place is gone.

        Raises:
            RunStopped, SpendLimit, BudgetExceeded: it is; the message tells a model to finish.
        """
        refuse_if_spent(self.run, "what was posted to the board is kept")


#: The tools by name, as the first board made them: their schemas take longer to make than a call.
_forms: dict[str, Tool] = {}


def _tool_of(function: Callable[..., Any]) -> Tool:
    """A function of one board as a tool; those of all boards have the same schema."""
    form = _forms.get(function.__name__)
    if form is None:
        form = _forms[function.__name__] = tool(function)
    return replace(form, function=function)


def _read(path: Path) -> list[Finding]:
    """The findings of a file; a line that a crash cut off is passed over."""
    found: list[Finding] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            given = json.loads(line)
            found.append(
                Finding(**{**given, "sources": tuple(given["sources"]), "version": len(found) + 1})
            )
        except (ValueError, TypeError, KeyError):
            continue
    return found
