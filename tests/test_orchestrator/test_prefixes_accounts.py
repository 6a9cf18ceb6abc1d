"""What caching saved and wasted: in the run, in the parts of it, in money and in one sentence."""

from __future__ import annotations

import asyncio
import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.context import calling_as
from orchestrator.journal import read_journal
from orchestrator.prefixes import CachingReport, sharing

from .running import say, stage

MODEL = "claude-sonnet-5-5"  # 2 in, 2.50 written, 0.10 read, for a million tokens
SYSTEM = "Rules of the house. " * 400  # 2,000 tokens of the simulator


async def ask(run: Any, text: str = "Go", *, system: str = SYSTEM) -> None:
    await say(run, f"{text} [[sim:output=5]]", model=MODEL, system=system)


async def test_what_is_saved_and_what_is_paid_for_it() -> None:
    """2,000 tokens written cost $0.001 more than plain input, and each read of them saves $0.0038."""
    async with stage(cache_settle_s=0) as scene:
        with sharing(uses=3):
            for _ in range(3):
                await ask(scene.run)
        report = scene.run.caching

        assert report == CachingReport(
            reads=2,
            writes=1,
            read_tokens=4_000,
            written_tokens=2_000,
            saved_nanos=7_600_000,
            surcharge_nanos=1_000_000,
            wasted_nanos=0,
        )
        assert (report.saved, report.surcharge, report.wasted) == (
            Decimal("0.0076"),
            Decimal("0.001"),
            0,
        )
        assert str(report) == (
            "caching: 2 calls read 4,000 tokens, 1 wrote 2,000 (67% read); reads saved $0.0076, "
            "writes cost $0.001 more than plain input, $0.00 of it wasted"
        )


async def test_a_write_is_wasted_until_it_is_read() -> None:
    """The surcharge of a write counts as wasted, for whoever made it, until somebody reads it."""
    async with stage(cache_settle_s=0) as scene:
        with sharing(uses=2):
            with calling_as("first") as first:
                await ask(scene.run)
            assert (first.wasted_nanos, scene.run.caching.wasted_nanos) == (1_000_000, 1_000_000)
            with calling_as("second") as second:
                await ask(scene.run)

        assert (first.wasted_nanos, second.wasted_nanos) == (0, 0)
        assert scene.run.caching.wasted_nanos == 0
        assert (first.surcharge_nanos, second.saved_nanos) == (1_000_000, 3_800_000)


async def test_a_write_that_nobody_reads_stays_wasted() -> None:
    """What was said to be shared, and was not, is shown at the end of the run."""
    async with stage(cache_settle_s=0) as scene:
        with sharing(uses=2):
            await ask(scene.run)
        with sharing(uses=2):
            await ask(scene.run, system=f"Other. {SYSTEM}")

        assert scene.run.caching.wasted_nanos == scene.run.caching.surcharge_nanos
        assert scene.run.caching.hit_rate == 0


async def test_writing_the_same_again_and_again_raises_the_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P-06, P-07: a prefix that is written instead of read is wasted money, and said once."""
    caplog.set_level(logging.WARNING, "earmark")
    async with stage(folder=tmp_path, sim={"keep_calls": 9}, cache_settle_s=0) as scene:
        with sharing(uses=6):
            for _ in range(6):
                await ask(scene.run)
                scene.sim.world.cache.clear()
        journal = scene.run.journal.path
        report = scene.run.caching

    assert (report.writes, report.reads, report.alarms) == (6, 0, 1)
    assert report.wasted_nanos == report.surcharge_nanos == 6_000_000
    alarms = [event for event in read_journal(journal) if event["event"] == "cache_alarm"]
    assert [(one["model"], one["tokens"], one["nanos"]) for one in alarms] == [
        (MODEL, 2_000, 1_000_000)
    ]
    assert sum("again and again" in record.message for record in caplog.records) == 1


async def test_two_writes_at_once_are_one_too_many() -> None:
    """P-01: a read that misses writes again; that surcharge is wasted for good, the first one is not."""
    async with stage(sim={"cache_delay_s": 30}, cache_settle_s=0) as scene:
        with sharing(uses=2):
            await asyncio.gather(ask(scene.run), ask(scene.run))
        assert scene.run.caching.wasted_nanos == 2_000_000
        scene.sim.world.cache._delay_s = 0

        with sharing(uses=2):
            await ask(scene.run)
            await ask(scene.run)

        report = scene.run.caching
        assert (report.writes, report.reads) == (3, 1)
        assert (report.surcharge_nanos, report.wasted_nanos) == (3_000_000, 2_000_000)


async def test_an_hour_costs_its_own_price() -> None:
    """Uses far apart are written for an hour: twice plain input, so $0.004 more for 2,000 tokens."""
    async with stage(sim={"keep_calls": 9}, cache_settle_s=0) as scene:
        with sharing(uses=9, every_s=600):
            await ask(scene.run)

        marker = json.loads(scene.sim.calls[0].body)["system"][0]["cache_control"]
        assert marker == {"type": "ephemeral", "ttl": "1h"}
        assert scene.run.caching.surcharge_nanos == 4_000_000
        scene.prove_exact()


def test_a_run_that_cached_nothing_says_so() -> None:
    """No figures where there are none."""
    assert str(CachingReport()) == "caching: nothing was cached"
    assert CachingReport().hit_rate == 0
