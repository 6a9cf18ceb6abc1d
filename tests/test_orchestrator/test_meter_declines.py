"""Declines: what they say, what they don't feed, and that nothing swallows them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import anthropic
import pytest

from budgets import (
    BudgetExceeded,
    Cap,
    InvalidInput,
    Ledger,
    Unbounded,
    UnknownPrice,
    default_book,
    scope,
)
from budgets.errors import BudgetError
from orchestrator.gate import Gate
from orchestrator.meter import Meter
from orchestrator.retry import Retry
from orchestrator.simulator import Fault
from orchestrator.wire import Allowances

from .metering import MODEL, ask, rig


async def test_a_cap_of_nothing_refuses_every_call() -> None:
    """A $0 cap refuses; the error names the cap, the sums and what was asked (O-03, H-03, H-10)."""
    async with rig(cap="0") as on:
        with pytest.raises(BudgetExceeded) as caught:
            await on.client.messages.create(**ask())

        error = caught.value
        assert (error.scope, error.posted, error.held) == ("", 0, 0)
        assert error.asked > 0
        assert error.asked_by == "app"
        assert on.sim.stats.arrived == 0
        on.prove_exact(requests=0)


async def test_parallel_calls_never_pass_the_cap() -> None:
    """Of many calls at once exactly as many are admitted as fit, at any width (O-01, O-05)."""
    async with rig(cap="0.02", gate=Gate(width=200)) as on:
        calls = (on.client.messages.create(**ask()) for _ in range(200))
        answers = await asyncio.gather(*calls, return_exceptions=True)

        declined = [answer for answer in answers if isinstance(answer, BudgetExceeded)]
        served = [answer for answer in answers if isinstance(answer, anthropic.types.Message)]
        assert len(declined) + len(served) == 200
        assert 0 < on.sim.bill.nanos <= 20_000_000
        assert on.sim.bill.requests == len(served) > 10
        on.prove_exact()


@pytest.mark.parametrize("client_retries", [0, 2])
@pytest.mark.parametrize("retry", [None, Retry()])
async def test_a_decline_feeds_no_retry_and_no_gate(
    client_retries: int, retry: Retry | None
) -> None:
    """A decline is not the provider's failure: no retry, no pause, the same width (H-08)."""
    heard: list[str] = []

    class Ears:
        def before_call(self) -> None:
            heard.append("before")

        def held(self, attempt: Any) -> None:
            heard.append("held")

        def ended(self, attempt: Any, ending: Any) -> None:
            heard.append("ended")

        def declined(self, error: BudgetError) -> None:
            heard.append("declined")

        def retrying(self, error: Any, tries: int, wait_s: float) -> None:
            heard.append("retrying")

    options = {"max_retries": client_retries}
    async with rig(cap="0", retry=retry, client=options, listener=Ears()) as on:
        widths = set()
        for _ in range(20):
            with pytest.raises(BudgetExceeded):
                await on.client.messages.create(**ask())
            widths.update(group.width for group in on.gate.statistics().groups.values())

        assert len(widths) == 1
        assert heard == ["before", "declined"] * 20
        statistics = on.gate.statistics()
        (group,) = statistics.groups.values()
        assert (statistics.in_use, statistics.waiting, statistics.dropped) == (0, 0, 0)
        assert (group.throttled, group.paused_s, group.history) == (0, 0.0, ())


async def test_posted_money_latches_until_the_cap_is_raised() -> None:
    """Declined for posted money, a scope stays so, for smaller calls too, until its cap is raised."""
    async with rig(cap="0.01") as on:
        with contextlib.suppress(BudgetExceeded):
            for _ in range(100):
                await on.client.messages.create(**ask(max_tokens=500))
        with pytest.raises(BudgetExceeded) as caught:
            await on.client.messages.create(**ask(max_tokens=1))
        assert caught.value.latched

        on.ledger.set_cap(Cap("1"))
        await on.client.messages.create(**ask())
        on.prove_exact()


async def test_an_inner_scope_declines_alone() -> None:
    """The cap of one scope stops that scope; its siblings go on (O-06)."""
    async with rig() as on:
        with scope("poor", cap="0.0001"), pytest.raises(BudgetExceeded) as caught:
            await on.client.messages.create(**ask())
        assert caught.value.scope == "app/poor"
        with scope("rich", cap="1"):
            await on.client.messages.create(**ask())
        on.prove_exact(requests=1)


async def test_a_task_inherits_its_scope() -> None:
    """Tasks started inside a scope draw on it, whatever client they use (O-10, rule 11)."""
    async with rig() as on:
        other = anthropic.AsyncAnthropic(
            api_key="key", base_url=on.sim.url, middleware=[Meter(on.ledger, "app")]
        )
        async with other:
            with scope("team", cap="1"):
                task = asyncio.create_task(other.messages.create(**ask()))
            await task
        assert on.last().scope == "app/team"
        on.prove_exact(requests=1)


async def test_unknown_models_are_declined_with_the_nearest() -> None:
    """A model without a price is not sent, and the message names the nearest ones (C-02, C-03)."""
    async with rig() as on:
        with pytest.raises(UnknownPrice, match="claude-sonnet-5-5"):
            await on.client.messages.create(**ask(model="claude-sonet-5-5"))
        assert on.sim.stats.arrived == 0
        assert on.gate.statistics().in_use == 0


@pytest.mark.parametrize(
    ("extra", "feature"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, "code_exec"),
        ({"fallbacks": "default"}, "fallbacks"),
        ({"service_tier": "auto"}, "service_tier"),
        ({"something_new": True}, "something_new"),
    ],
)
async def test_what_has_no_bound_is_declined_by_name(extra: dict[str, Any], feature: str) -> None:
    """A feature without an upper limit is declined by its name; nothing is sent (rule 3)."""
    async with rig() as on:
        with pytest.raises(Unbounded, match=feature):
            await on.client.messages.create(**ask(), extra_body=extra)
        assert on.sim.stats.arrived == 0
        assert list(on.ledger.lines()) == []


async def test_web_searches_with_a_limit_are_charged() -> None:
    """With max_uses and a word for their size, searches are held and settled by count (C-15)."""
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    allow = Allowances(web_search_tokens=2_000)
    async with rig(allow=allow) as on:
        await on.client.messages.create(**ask("[[sim:searches=2]]", tools=[tool]))

        assert on.sim.bill.web_searches == 2
        assert next(iter(on.ledger.lines())).note["caller_word"]
        on.prove_exact(requests=1)


async def test_nonsense_is_the_callers_mistake() -> None:
    """A body that is no request is declined with a clear error; nothing is sent."""
    async with rig() as on:
        with pytest.raises(InvalidInput, match="messages"):
            await on.client.post("/v1/messages", cast_to=object, body={"model": MODEL})
        with pytest.raises(InvalidInput, match="max_tokens"):
            await on.client.messages.create(**ask(), extra_body={"max_tokens": "many"})
        assert on.sim.stats.arrived == 0


async def test_the_running_total_of_a_conversation_is_not_a_leak() -> None:
    """A hundred turns in a row leave nothing behind but their lines."""
    async with rig() as on:
        for _ in range(100):
            await on.client.messages.create(**ask())
        assert len(list(on.ledger.lines())) == 200
        on.prove_exact(requests=100)


async def test_held_money_makes_calls_wait_in_order() -> None:
    """With only held money in the way calls wait, first come first served (rule 12, H-05)."""
    async with rig(cap="0.009") as on:
        on.sim.faults.extend([Fault(kind="hang")])
        order: list[int] = []

        async def call(number: int) -> None:
            await on.client.messages.create(**ask())
            order.append(number)

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(call(number)))
            while len(tasks) > 1 and on.ledger.waiting < number:
                await asyncio.sleep(0)
            await on.sim.arrived(1)
        on.sim.release()
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]
        on.prove_exact(requests=4)


class _Marker:
    """Something that a frame of a traceback refers to."""


async def test_a_remembered_decline_keeps_nothing_alive() -> None:
    """Of a decline only the facts are kept: no traceback, and so no request body."""
    async with rig(cap="0") as on:

        async def call() -> weakref.ref[_Marker]:
            marker = _Marker()
            with contextlib.suppress(BudgetExceeded):
                await inner(marker)
            return weakref.ref(marker)

        async def inner(marker: _Marker) -> None:
            await on.client.messages.create(**ask())

        alive = await call()
        gc.collect()
        assert alive() is None


def test_price_book_is_the_pinned_one() -> None:
    """A meter without a price book uses the pinned list prices."""
    assert Meter(Ledger()).prices is default_book()
