"""The closing report: written of what there is, with money that was set aside before anything began."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from budgets.errors import LedgerUnavailable
from budgets.money import format_usd, parse_usd, to_decimal
from budgets.reserves import Reserve, drawing_on
from orchestrator.agent import Agent
from orchestrator.errors import ConfigError
from orchestrator.performer import Performer
from orchestrator.run import Run

from .estimates import worst_of_each
from .parts import Part, is_performer, perform
from .prompts import as_text
from .references import References
from .result import Result
from .tasks import missing_of

#: Who writes it: an agent, or a function of the list of parts, async or not.
Writer = Performer | Callable[[list[Part[Any]]], Any]
#: Bytes of all reports and sources that a lead or the writer reads at once, unless said otherwise.
REPORT_BYTES = 40_000
#: Of them, the share of the list of sources.
_FOR_SOURCES = 4


class Closing:
    """The report at the end. Use as ``async with await Closing.opened(...)``.

    The reserve is the bound of one task of the writer on the longest prompt that it can be given; prompts are
    made to fit.
    """

    def __init__(
        self,
        run: Run,
        writer: Writer,
        whole: str,
        *,
        size: int,
        reserve: Reserve | None = None,
    ) -> None:
        self._run = run
        self._writer = writer
        self._whole = whole
        self._size = size
        self._reserve = reserve

    @classmethod
    async def opened(
        cls, run: Run, writer: Writer, whole: str, *, size: int = REPORT_BYTES
    ) -> Closing:
        """Set the money aside.

        Args:
            run: whose caps count, in the scope of here and now.
            writer: see ``Writer``; a function needs no money.
            whole: the task.
            size: bytes of reports and sources that it reads at most.

        Raises:
            BudgetExceeded: it can't be afforded; nothing was set aside, nothing was spent.
            ConfigError: the writer's own cap can't pay for it, or nothing bounds it.
        """
        if not is_performer(writer):
            return cls(run, writer, whole, size=size)
        nanos = worst_of_each(run, writer, [longest_prompt(whole, size)])[0]
        cap = getattr(writer, "cap", None)
        if cap is not None and parse_usd(cap) < nanos:
            raise ConfigError(
                f"{writer.name}: its cap of {format_usd(parse_usd(cap))} can't pay for the report at the end, which "
                f"costs up to {format_usd(nanos)}; raise it, or lower report_bytes or its max_tokens"
            )
        run.check()
        reserve = await run.reserve(to_decimal(nanos))
        return cls(run, writer, whole, size=size, reserve=reserve)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reserve is not None:
            with contextlib.suppress(LedgerUnavailable):  # closed: all its reserves are back
                await self._run.ledger.release_async(self._reserve)

    async def write(self, parts: list[Part[Any]], references: References) -> Part[Any]:
        """Have the report written, of these parts."""
        writer = self._writer
        if not is_performer(writer):

            async def made(given: list[Part[Any]]) -> Any:
                value = writer(given)
                return await value if inspect.isawaitable(value) else value

            return await perform(self._run, made, parts, name=getattr(writer, "__name__", "writer"))
        assert self._reserve is not None
        prompt = self._prompt(writer, parts, references, most=self._reserve.nanos)
        with drawing_on(self._reserve):
            return await perform(self._run, writer, parts, prompt=prompt)

    def _prompt(
        self, writer: Performer, parts: Sequence[Part[Any]], references: References, *, most: int
    ) -> str:
        """The longest prompt that the reserve pays for."""
        size = self._size
        while True:  # ends: with 0 bytes of reports it is shorter than the one that was bounded
            prompt = _closing_prompt(self._whole, parts, references, size)
            if size == 0 or worst_of_each(self._run, writer, [prompt])[0] <= most:
                return prompt
            size = size * 4 // 5


def default_writer(lead: Agent) -> Agent:
    """The lead, without its tools and its form of an answer, as the writer of the report."""
    kept = {name: lead.extra[name] for name in lead.extra if name not in {"tools", "tool_choice"}}
    return replace(
        lead,
        name=f"{lead.name}-report",
        tools=(),
        output=None,
        check=None,
        repairs=0,
        cap=None,
        extra=kept,
    )


def _closing_prompt(
    whole: str, parts: Sequence[Part[Any]], references: References, size: int
) -> str:
    failed = len(missing_of(parts))
    missing = f" {failed} of the {len(parts)} parts failed: say what is missing." if failed else ""
    cite = " Cite the sources of each claim by their numbers, [1]." if references.all else ""
    return (
        f"<whole>\n{whole}\n</whole>\n\n{told(parts, references, size)}\n\nWrite the result of the whole from these "
        f"reports and nothing else.{cite}{missing}"
    )


def longest_prompt(whole: str, size: int) -> str:
    """A prompt as long as the longest that a lead or a writer is given."""
    return f"{whole}{'x' * (size + 800)}"


def told(parts: Sequence[Part[Any]], references: References, size: int) -> str:
    """What parts came to and where it is from, in at most so many bytes; each report gets the same share."""
    listed = "\n".join(str(one) for one in references.all)
    sources = f"<sources>\n{listed}\n</sources>\n\n" if listed else ""
    sources = clipped(sources, size // _FOR_SOURCES)
    share = (size - _size(sources)) // max(len(parts), 1)
    return clipped(sources + "\n\n".join(_report(part, references, share) for part in parts), size)


def _report(part: Part[Any], references: References, share: int) -> str:
    """One report in about so many bytes; a failed part is named as such, with what it has all the same."""
    value = part.value.value if isinstance(part.value, Result) else part.value
    task = getattr(part.item, "id", part.index + 1)
    title = getattr(part.item, "title", "")
    numbers = ", ".join(str(number) for number in references.of(part))
    head = f'<report task="{task}" title="{title[:80]}" outcome="{part.outcome.value}" sources="{numbers[:200]}">'
    body = "" if value is None else as_text(value)
    if not part.ok:
        body = f"({part.reason[:300]})\n{body}"
    return f"{head}\n{clipped(body, max(share - _size(head) - 20, 0))}\n</report>"


def clipped(text: str, most: int) -> str:
    """The text in at most so many bytes as JSON, with a mark if it was cut."""
    if _size(text) <= most:
        return text
    room = max(most - len(_CUT), 0)
    while text and (size := _size(text)) > room:  # each turn makes it shorter
        text = text[: len(text) * room // size]
    return text + _CUT if text else ""


_CUT = " [cut]"


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode(errors="replace")) - 2


__all__ = [
    "REPORT_BYTES", "Closing", "Writer", "clipped", "default_writer", "longest_prompt", "told",
]  # fmt: skip
