"""Attempts: what is written down of one, what spans and listeners hear, and that it ends only once."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from budgets import BudgetExceeded, Usage, scope
from budgets.errors import BudgetError
from orchestrator.attempt import usage_record
from orchestrator.context import calling_as
from orchestrator.simulator import Fault

from .metering import ask, rig, sync_rig

SLOW = "Hello [[sim:output=100]][[sim:pace=200]]"


# ---- spans ------------------------------------------------------------------------------------------


def _tracing() -> tuple[InMemorySpanExporter, dict[str, Any]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, {"open_telemetry": {"tracer_provider": provider}}


def _facts(span: ReadableSpan) -> dict[str, Any]:
    found = dict(span.attributes or {})
    return {
        name.removeprefix("earmark."): value
        for name, value in found.items()
        if name.startswith("earmark.")
    }


async def test_the_span_of_a_call_says_what_it_cost() -> None:
    """The SDK's own span carries scope, outcome and cost, in nano-dollars and in dollars."""
    exporter, client = _tracing()
    async with rig(client=client) as on:
        with scope("team"):
            await on.client.messages.create(**ask())
        (span,) = exporter.get_finished_spans()
        nanos = on.sim.bill.nanos
        assert span.name == "anthropic.messages.create"
        assert _facts(span) == {
            "scope": "app/team",
            "outcome": "settle",
            "cost_nanos": nanos,
            "cost_usd": f"{nanos / 10**9:.9f}".rstrip("0"),
        }


async def test_the_span_of_a_stream_says_what_it_cost() -> None:
    """A stream's span ends with it, and says the final cost."""
    exporter, client = _tracing()
    async with rig(client=client) as on:
        async with on.client.messages.stream(**ask()) as stream:
            await stream.until_done()
        (span,) = exporter.get_finished_spans()
        assert _facts(span)["outcome"] == "settle"
        assert _facts(span)["cost_nanos"] == on.sim.bill.nanos


@pytest.mark.parametrize("how", ["left", "cut", "void"])
async def test_the_span_of_a_broken_stream_says_what_is_charged(how: str) -> None:
    """Left early or cut: in doubt at the whole hold. An error before any output: void, nothing."""
    exporter, client = _tracing()
    async with rig(client=client) as on:
        if how != "left":
            kind = "cut" if how == "cut" else "sse_error"
            on.sim.faults.extend([Fault(kind=kind, after_events=5 if how == "cut" else 0)])
        try:
            async with on.client.messages.stream(**ask(SLOW)) as stream:
                async for _ in stream:
                    if how == "left":
                        break
        except Exception:
            assert how != "left"
        (span,) = exporter.get_finished_spans()
        held = next(iter(on.ledger.lines())).nanos
        facts = _facts(span)
        expected = ("void", 0) if how == "void" else ("doubt", held)
        assert (facts["outcome"], facts["cost_nanos"]) == expected


def test_the_span_of_a_blocking_call() -> None:
    """The same for the sync client, calls and streams."""
    exporter, client = _tracing()
    with sync_rig(client=client) as on:
        on.client.messages.create(**ask())
        with on.client.messages.stream(**ask()) as stream:
            stream.until_done()
        spans = exporter.get_finished_spans()
        costs = [_facts(span)["cost_nanos"] for span in spans]
        assert len(costs) == 2
        assert sum(costs) == on.sim.bill.nanos


async def test_a_span_of_the_callers_own_is_left_alone() -> None:
    """With the SDK's spans off, nothing is written on whatever span is current."""
    exporter, client = _tracing()
    tracer = client["open_telemetry"]["tracer_provider"].get_tracer("the caller's")
    async with rig(client={"open_telemetry": False}) as on:
        with tracer.start_as_current_span("mine"):
            await on.client.messages.create(**ask())
        (span,) = exporter.get_finished_spans()
        assert _facts(span) == {}


# ---- listeners --------------------------------------------------------------------------------------


class Ears:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def before_call(self) -> None:
        self.heard.append(("before",))

    def held(self, attempt: Any) -> None:
        self.heard.append(("held", attempt.hold.scope))

    def ended(self, attempt: Any, ending: Any) -> None:
        self.heard.append(("ended", ending.kind, ending.nanos, attempt.call.agent))

    def declined(self, error: BudgetError) -> None:
        self.heard.append(("declined", type(error).__name__))

    def retrying(self, error: Any, tries: int, wait_s: float) -> None:
        self.heard.append(("retrying", error and error.word, tries))


async def test_a_listener_hears_the_life_of_a_call() -> None:
    """Before, held, before again as it leaves, ended; with the agent that called."""
    ears = Ears()
    async with rig(listener=ears) as on:
        with calling_as("researcher", unit="doc-1"):
            await on.client.messages.create(**ask())
        cost = on.sim.bill.nanos
        assert ears.heard == [
            ("before",),
            ("held", "app"),
            ("before",),
            ("ended", "settle", cost, "researcher"),
        ]
        line = next(iter(on.ledger.lines()))
        assert (line.note["agent"], line.note["unit"]) == ("researcher", "doc-1")


async def test_a_listener_may_stop_a_call() -> None:
    """What ``before_call`` raises reaches the caller unchanged, and nothing is sent or held."""

    class Stop(Ears):
        def before_call(self) -> None:
            raise LookupError("stopped")

    async with rig(listener=Stop()) as on:
        with pytest.raises(LookupError, match="stopped"):
            await on.client.messages.create(**ask())
        assert list(on.ledger.lines()) == []
        assert on.sim.stats.arrived == 0


async def test_a_listener_that_raises_at_the_hold_voids_it() -> None:
    """Nothing was sent yet, so the hold is given back."""

    class Bad(Ears):
        def held(self, attempt: Any) -> None:
            raise LookupError("no")

    async with rig(listener=Bad()) as on:
        with pytest.raises(LookupError):
            await on.client.messages.create(**ask())
        assert on.kinds() == ["void"]
        on.prove_exact(requests=0)


async def test_a_listener_hears_declines() -> None:
    """A decline is heard once, and is no end of a hold."""
    ears = Ears()
    async with rig(listener=ears, cap="0") as on:
        with pytest.raises(BudgetExceeded):
            await on.client.messages.create(**ask())
        assert ears.heard == [("before",), ("declined", "BudgetExceeded")]


async def test_settled_once_whoever_closes() -> None:
    """Reading to the end, closing twice, and collecting it: one end for each hold."""
    async with rig() as on:
        stream = await on.client.messages.create(**ask(), stream=True)
        async for _ in stream:
            pass
        await stream.close()
        await stream.close()
        await stream.response.aclose()
        del stream
        assert on.kinds() == ["settle"]
        on.prove_exact(requests=1)


async def test_closed_from_another_task_while_it_is_read() -> None:
    """A stream that another task closes ends in doubt, once."""
    async with rig() as on:
        stream = await on.client.messages.create(**ask(SLOW), stream=True)
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        await stream.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert on.kinds() == ["doubt"]
        on.prove()


# ---- records ----------------------------------------------------------------------------------------


def test_usage_record_keeps_all_that_a_cost_comes_from() -> None:
    """The four token classes are always there; the rest if it says something (S-04, C-28)."""
    usage = Usage(
        model="claude-sonnet-5-5",
        input_tokens=1,
        cache_write_5m=2,
        cache_write_1h=3,
        cache_write_unsplit=4,
        cache_read=5,
        output_tokens=6,
        web_searches=7,
        geo="us",
        unsplit_ttl="1h",
    )
    record = usage_record(usage)
    assert record["input_tokens"] == 1
    assert record["cache_write_tokens"] == 9
    assert record["cache_read_tokens"] == 5
    assert record["output_tokens"] == 6
    assert (record["cache_write_1h"], record["unsplit_ttl"], record["web_searches"]) == (3, "1h", 7)


def test_usage_record_of_iterations_sums_the_bill() -> None:
    """Where iterations are the bill, the totals are theirs (C-13)."""
    part = Usage(model="claude-sonnet-5-5", input_tokens=10, output_tokens=20, cache_read=3)
    whole = Usage(model="claude-sonnet-5-5", input_tokens=10, output_tokens=20, parts=(part, part))
    record = usage_record(whole)
    assert (record["input_tokens"], record["output_tokens"], record["cache_read_tokens"]) == (
        20,
        40,
        6,
    )
    assert len(record["parts"]) == 2


async def test_error_classes_reach_the_caller_unchanged() -> None:
    """The meter changes no error of the SDK."""
    async with rig() as on:
        on.sim.faults.extend(["forbidden"])
        with pytest.raises(anthropic.PermissionDeniedError) as caught:
            await on.client.messages.create(**ask())
        assert caught.value.request_id is not None
