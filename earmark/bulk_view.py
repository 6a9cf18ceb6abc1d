"""What a bulk job shows: the quote before, progress during, the summary after."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from . import output
from .exits import Exit

if TYPE_CHECKING:
    from budgets.caps import Cap
    from orchestrator.documents import Skipped
    from orchestrator.run import Run
    from patterns.bulk import Progress, Quote, Row, Task

    from .bulk_way import Way

T = TypeVar("T")

#: The four bills of a job over batches.
BILLS = {
    "batch": "batches (this bill)",
    "batch_without_cache": "batches without a cache",
    "direct": "direct calls",
    "direct_without_cache": "direct calls without a cache",
}

#: Without a terminal, a line of progress this often.
_LINE_EVERY_S = 10.0
_REDRAW_EVERY_S = 0.1
_TO = {"classify": "classify", "extract": "extract from", "map": "map"}
_DOING = {"classify": "classifying", "extract": "extracting", "map": "mapping"}
_PREFIX = {
    "classify": "instructions, labels and rubric",
    "extract": "instructions",
    "map": "instructions",
}


class View:
    """Speaks to a person on standard error while it works, and prints the summary on standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._live = sys.stderr.isatty()
        self.skipped: Skipped | None = None

    def say(self, text: str) -> None:
        """A remark; with ``--json`` only on a terminal."""
        if self._live or not self._as_json:
            output.remark(text)

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """Count items while they are looked at, if that takes a while."""
        last = time.monotonic()
        for count, item in enumerate(items, 1):
            yield item
            if self._live and time.monotonic() - last > 1:
                last = time.monotonic()
                output.remark(f"reading: {count:,} documents ...")

    def quote(self, task: Task, estimate: Quote, cap: Cap, way: Way) -> None:
        """What it will cost."""
        parts = [f"{estimate.documents:,} documents to {_TO[task.name]} with {task.model}"]
        if estimate.reused:
            parts.append(f"{estimate.reused:,} done before")
        if estimate.same:
            parts.append(f"{estimate.same:,} the same as another one")
        if estimate.problems:
            kinds = ", ".join(
                f"{count:,} {kind}" for kind, count in sorted(estimate.problems.items())
            )
            parts.append(f"not sent: {kinds}")
        self.say("; ".join(parts))
        if self.skipped is not None:
            passed = {"hidden": self.skipped.hidden, "excluded": self.skipped.excluded}
            told = ", ".join(f"{count:,} {kind}" for kind, count in passed.items() if count)
            hint = " (--hidden looks at hidden files, too)" if self.skipped.hidden else ""
            if told:
                self.say(f"passed over: {told}{hint}")
        if not estimate.files:
            is_table = self.skipped is None
            self.say(
                "the table has no rows"
                if is_table
                else "no file matches: check the folder, --include and --exclude"
            )
        if not estimate.documents:
            return
        worst, likely = estimate.worst_nanos, estimate.likely_nanos
        if way.is_batch:
            worst, likely = estimate.batch_worst_nanos, estimate.batch_likely_nanos
        if worst <= cap.nanos:
            verdict = "every document can be paid"
        elif likely <= cap.nanos:
            verdict = "probably enough, it stops there if not"
        else:
            verdict = "it will stop part of the documents"
        how = "over batches" if way.is_batch else "by direct calls"
        self.say(
            f"{how} ({way.why}): at worst {output.dollars(worst)}, probably about {output.dollars(likely)}; "
            f"the cap is {output.dollars(cap.nanos)}: {verdict}"
        )
        if way.is_batch:
            return  # the batches say themselves whether marking the prefix pays
        note = (
            "is cached"
            if task.cached
            else "is below the model's minimum for caching, so it is not cached"
        )
        self.say(f"the common prefix of {_PREFIX[task.name]} {note}")

    @contextmanager
    def progress(
        self, run: Run, task: Task, cap: Cap, total: int
    ) -> Iterator[Callable[[Row, Progress], None]]:
        """Shows rows as they come: count, rate, spend against the cap."""
        began = last = time.monotonic()

        def text(progress: Progress) -> str:
            rate = progress.done / max(time.monotonic() - began, 0.001)
            spent = f"{output.dollars(run.tally.posted_nanos)} of {output.dollars(cap.nanos)}"
            doubt = (
                f", {output.dollars(run.tally.in_doubt_nanos)} in doubt"
                if run.tally.in_doubt_nanos
                else ""
            )
            halt = (
                f"; {run.stopped}: waits for calls in flight, Ctrl-C leaves" if run.stopped else ""
            )
            return f"{progress.done:,}/{total:,}  {rate:,.0f}/s  {spent}{doubt}{halt}"

        if not self._live:
            yield self._lines(text, last)
            return
        from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
        from rich.text import Text

        class Now(ProgressColumn):
            """Looks at every redraw, so that it also tells that nothing happens any more."""

            def render(self, task: Any) -> Text:
                return Text(text(task.fields["progress"]))

        bars = Bars(
            TextColumn(_DOING[task.name]),
            BarColumn(),
            Now(),
            TimeRemainingColumn(),
            console=output.terminal(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with bars:
            from patterns.bulk import Progress as Totals

            bar = bars.add_task("", total=total, progress=Totals())
            drawn = 0.0

            def show(_: Row, progress: Progress) -> None:
                nonlocal drawn
                now = time.monotonic()
                if now - drawn > _REDRAW_EVERY_S or progress.done >= total:
                    drawn = now
                    bars.update(bar, completed=progress.done, progress=progress)

            yield show

    def _lines(
        self, text: Callable[[Progress], str], last: float
    ) -> Callable[[Row, Progress], None]:
        def show(_: Row, progress: Progress) -> None:
            nonlocal last
            if time.monotonic() - last > _LINE_EVERY_S:
                last = time.monotonic()
                self.say(text(progress))

        return show

    def _bills(self, batches: dict[str, Any]) -> None:
        """The bill of the batches beside what it would have been otherwise."""
        output.print_table(
            ["the same answers", output.right("bill")],
            [[told, output.dollars(batches[f"{name}_nanos"])] for name, told in BILLS.items()],
        )

    def summary(self, summary: dict[str, Any], *, formats: Sequence[str] = ("csv",)) -> None:
        """The end: one document with ``--json``, else a few lines."""
        if self._as_json:
            output.print_json(summary)
            return
        if summary["dry_run"]:
            output.say("dry run: nothing was sent and nothing was spent")
            return
        if summary["simulated"]:
            output.say(
                "SIMULATED: the answers come from the built-in stand-in, and no money was spent"
            )
        output.print_table(
            ["outcome", output.right("documents")],
            [[name, f"{count:,}"] for name, count in summary["outcomes"].items()],
        )
        if summary["labels"]:
            output.print_table(
                ["label", output.right("documents")],
                [[name, f"{count:,}"] for name, count in summary["labels"].items()],
            )
        output.say(
            f"spent      {_usd(summary, 'posted')} of {_usd(summary, 'cap')}{_doubt(summary)}"
        )
        tokens = summary["tokens"]
        read, fresh = tokens.get("cache_read_tokens", 0), tokens.get("input_tokens", 0)
        written = tokens.get("cache_write_tokens", 0)
        if read or written:
            share = 100 * read / max(read + fresh + written, 1)
            output.say(f"cache      {share:.0f} % of the input was read from the prompt cache")
        if summary["reused"]:
            output.say(f"reused     {summary['reused']:,} answers from before, paid once")
        if summary["same"]:
            output.say(f"same       {summary['same']:,} took over the answer of an equal document")
        if summary["batches"]:
            self._bills(summary["batches"])
        tables = "".join(f", results.{form}" for form in formats)
        output.say(f"results    {summary['out']}/results.jsonl{tables}")
        output.say(
            f"ledger     earmark ledger lines --scope {summary['scope']} --ledger {summary['ledger']}"
        )
        if summary["exit_code"] not in {0, 2}:
            output.say(f"failed     earmark results {summary['out']} --failed")
        if summary["exit_code"] not in {0, 1, 2}:
            more = " --cap MORE" if summary["exit_code"] == Exit.CAP else ""
            output.say(f"go on      {summary['go_on']}{more}")


def _usd(summary: dict[str, Any], name: str) -> str:
    return output.dollars(int(summary[f"{name}_nanos"]))


def _doubt(summary: dict[str, Any]) -> str:
    if not int(summary["in_doubt_nanos"]):
        return ""
    return f", {_usd(summary, 'in_doubt')} in doubt (earmark ledger holds)"
