"""Orchestrate: a plan made at run time, workers at once, a report that was paid for before anything began."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.errors import ConfigError
from orchestrator.journal import read_journal
from orchestrator.outcomes import Outcome
from orchestrator.server_tools import web_search
from orchestrator.simulator import Cue, Faults
from orchestrator.trips import Cheaper
from patterns.orchestrate import orchestrate
from patterns.tasks import Task
from tests.test_orchestrator.running import Stage, helper, stage
from tests.test_patterns.leading import FIRST, LATER, REPORT, answer, cues, names, planned, task


def lead(**fields: Any) -> Any:
    return helper(**{"name": "lead", "max_tokens": 400, **fields})


def worker(**fields: Any) -> Any:
    return helper(**{"name": "researcher", **fields})


def sent(st: Stage) -> list[str]:
    """The prompts of all messages, in the order in which they came."""
    return [
        json.dumps(json.loads(call.body)["messages"][0]["content"])
        for call in st.sim.world.calls
        if call.path.startswith("/v1/messages")
    ]


def script(*pairs: tuple[str, str], times: int = 1, **fields: Any) -> dict[str, Any]:
    return {"cues": cues(*pairs, times=times), "keep_calls": 100, **fields}


# ---- rounds -------------------------------------------------------------------------------------------


async def test_a_lead_plans_workers_work_and_a_report_ends_it() -> None:
    """Each task is a part; the lead reads the reports, asks for more, ends; every dollar is in the result."""
    told = script(
        (FIRST, planned("Find the price", "Find the weight")),
        (LATER, planned("Find the colour", done=False)),
        (LATER, planned(done=True)),
        (REPORT, "[[sim:text=All is known.]]"),
    )
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(), "What is it?", rounds=3)
        assert (done.outcome, done.value, done.partial) == (Outcome.OK, "All is known.", False)
        assert [part.item.id for part in done.parts] == ["1.1", "1.2", "2.1"]
        assert [part.index for part in done.parts] == [0, 1, 2]
        assert [part.item.objective for part in done.parts][2] == "Find the colour"
        assert (done.rounds, len(done.plans[0])) == (2, 2)
        assert done.calls == 7
        assert done.posted_nanos == st.run.balance.posted_nanos
        st.prove_exact()


async def test_workers_get_objective_format_boundaries_and_the_whole() -> None:
    """What the plan says reaches the worker; what the worker said reaches lead and report."""
    told = script(
        (
            FIRST,
            planned(task("Find the price", output_format="a number", boundaries="not the tax")),
        ),
        ("Objective: Find the price", "[[sim:text=It is 42.]]"),
        (LATER, planned(done=True)),
    )
    async with stage(sim=told) as st:
        await orchestrate(st.run, lead(), worker(), "What is it?")
        _, brief, later, report = sent(st)
        assert all(text in brief for text in ("What is it?", "a number", "not the tax"))
        assert "It is 42." in later
        assert "It is 42." in report


async def test_the_last_round_is_not_looked_at() -> None:
    """With one round there is one call of the lead, the workers, and the report."""
    told = script((FIRST, planned("Find the price")))
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(), "What is it?", rounds=1)
        assert (done.ok, done.calls, done.rounds) == (True, 3, 1)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (planned("Find it", " find  IT. "), "objective of task 1"),
        (planned("Find it", ""), "no objective"),
        (planned(*names(6)), "6 tasks; 5 is the most"),
        (planned(), "no tasks"),
        (planned(task("Find it", boundaries="x" * 5_000)), "longer|too long"),
    ],
    ids=["twice", "empty", "too many", "none", "too long"],
)
async def test_a_bad_plan_is_sent_back_once_with_the_reason(plan: str, why: str) -> None:
    """A second one that is good is used; a second one that is bad ends it before any worker."""
    again = "could not be used"
    told = script((again, planned("Find the price")), (FIRST, plan))
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(max_tokens=8_000), worker(), "What?", rounds=1)
        assert (done.ok, len(done.parts)) == (True, 1)
    async with stage(sim=script((FIRST, plan), times=0)) as st:
        done = await orchestrate(st.run, lead(max_tokens=8_000), worker(), "What?", rounds=1)
        assert (done.outcome, done.parts, done.calls) == (Outcome.INVALID, (), 2)
        assert any(word in done.reason for word in why.split("|"))
        st.prove_exact()


async def test_a_task_of_an_earlier_round_is_not_given_out_again() -> None:
    """The lead is told, and what was done stays."""
    told = script(
        (FIRST, planned("Find the price")), (LATER, planned("Find the price", done=False)),
        (LATER, planned("find the price", done=False)),
    )  # fmt: skip
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(), "What is it?")
        assert (done.outcome, done.partial, len(done.parts)) == (Outcome.INVALID, True, 1)
        assert "task 1.1 of an earlier round" in done.reason
        assert done.value is not None


# ---- workers ------------------------------------------------------------------------------------------


async def test_the_plan_chooses_among_workers_and_their_tools() -> None:
    """A task names its worker and the tools to be used; the worker is given these alone."""

    def look_up(word: str) -> str:
        """Look a word up."""
        return word

    def measure(what: str) -> str:
        """Measure something."""
        return what

    told = script((FIRST, planned(
        task("Find the price", worker="finder", tools=["measure"]),
        task("Write it down", worker="writer", tools=[]),
    )))  # fmt: skip
    staff = {
        "finder": worker(name="finder", tools=[look_up, measure]),
        "writer": worker(name="writer"),
    }
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), staff, "What is it?", rounds=1)
        assert [part.name for part in done.parts] == ["finder", "writer"]
        bodies = [json.loads(call.body) for call in st.sim.world.calls]
        tools = [[tool["name"] for tool in body.get("tools", [])] for body in bodies]
        assert sorted(tools) == [[], [], [], ["measure"]]
        properties = bodies[0]["output_config"]["format"]["schema"]["$defs"]["PlannedTask"][
            "properties"
        ]
        assert properties["worker"]["enum"] == ["finder", "writer"]


async def test_workers_may_be_a_factory_or_a_function() -> None:
    """A function of the task returns an agent for it, or does it itself."""
    told = script((FIRST, planned("Find the price", "Find the weight")))

    async def itself(given: Task) -> str:
        return given.objective.upper()

    def made(given: Task) -> Any:
        return itself(given) if given.id == "1.1" else worker(name="made")

    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), made, "What is it?", rounds=1)
        assert (done.parts[0].value, done.parts[1].name) == ("FIND THE PRICE", "made")


async def test_each_task_has_the_workers_cap_for_itself() -> None:
    """A cap of the worker is for one task, not for all of them together."""
    told = script((FIRST, planned(*names(4))))
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(cap="0.003"), "What is it?", rounds=1)
        assert done.outcomes == {"ok": 4}
        tight = await orchestrate(
            st.run, lead(), worker(cap="0.0001"), "What is it?", rounds=1, name="tight"
        )
        assert set(tight.outcomes) == {"budget"} or tight.parts == ()


async def test_a_failed_worker_is_a_part_and_is_told_to_the_lead() -> None:
    """The others go on; the lead reads the outcome and the reason, and may ask for it again."""
    told = script(
        (FIRST, planned("Find the price", "Find the weight")),
        ("Objective: Find the price", "[[sim:refuse]]"),
        (LATER, planned("Find the price elsewhere", done=False)),
        (LATER, planned(done=True)),
    )
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(), "What is it?", rounds=3)
        assert [part.outcome.value for part in done.parts] == ["refusal", "ok", "ok"]
        assert (done.outcome, done.partial) == (Outcome.OK, True)
        later = next(prompt for prompt in sent(st) if LATER in prompt)
        assert "refusal" in later
        assert "the model refused" in later


@pytest.mark.parametrize(
    "again",
    ["Find the price", task("Find the price elsewhere", instead_of="1.1")],
    ids=["the same", "another that names it"],
)
async def test_what_was_done_again_is_not_missing(again: Any) -> None:
    """A failed task may be given out again; once that went well the result is whole."""
    told = script(
        (FIRST, planned("Find the price", "Find the weight")),
        ("Objective: Find the price", "[[sim:refuse]]"),
        (LATER, planned(again, done=False)),
        (LATER, planned(done=True)),
    )
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(), "What is it?", rounds=3)
        assert [part.outcome.value for part in done.parts] == ["refusal", "ok", "ok"]
        assert (done.outcome, done.partial) == (Outcome.OK, False)
        report = next(prompt for prompt in sent(st) if REPORT in prompt)
        assert "parts failed" not in report


async def test_what_lacked_money_and_was_done_again_does_not_end_in_budget() -> None:
    """Nor is a task that failed again, and was done at the third try, missing."""
    told = script(
        (FIRST, planned(task("Find the price", worker="poor"))),
        (LATER, planned(task("Find it", worker="poor", instead_of="1.1"), done=False)),
        (LATER, planned(task("Find it so", worker="rich", instead_of="2.1"), done=False)),
        (LATER, planned(done=True)),
    )
    staff = {"poor": worker(name="poor", cap="0.0000001"), "rich": worker(name="rich")}
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), staff, "What is it?", rounds=4)
        assert [part.outcome.value for part in done.parts] == ["budget", "budget", "ok"]
        assert (done.outcome, done.partial) == (Outcome.OK, False)


async def test_one_workers_timeout_does_not_stop_the_others() -> None:
    """It is a part with its outcome; its call is in doubt, the rest is settled."""
    told = script(
        (FIRST, planned("Find the price", "Find the weight", "Find the colour")),
        ("Objective: Find the weight", "[[sim:fault=hang]]"), times=0,
    )  # fmt: skip
    async with stage(sim=told) as st:
        slow = worker(timeout_s=0.3)
        done = await orchestrate(st.run, lead(), slow, "What is it?", rounds=1)
        assert [part.outcome.value for part in done.parts] == ["ok", "timeout", "ok"]
        assert (done.outcome, done.partial) == (Outcome.TIMEOUT, True)
        assert done.value is not None
        st.prove()


async def test_findings_are_checked_before_anybody_builds_on_them() -> None:
    """What a check finds wrong is an invalid part, and does not reach the report as a finding."""
    told = script(
        (FIRST, planned("Find the price", "Find the weight")),
        ("Objective: Find the price", "[[sim:text=It costs nonsense.]]"),
        ("Objective: Find the weight", "[[sim:text=It weighs 3 kg.]]"),
    )

    async def check(part: Any) -> str | None:
        return "no figure in it" if "nonsense" in part.value else None

    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(), "What is it?", rounds=1, check=check)
        assert [part.outcome.value for part in done.parts] == ["invalid", "ok"]
        report = sent(st)[-1]
        assert "no figure in it" in report
        assert "nonsense" not in report


# ---- sources ------------------------------------------------------------------------------------------


class Report(BaseModel):
    """A structured report."""

    text: str
    sources: list[str]


async def test_every_source_is_kept_once_with_who_found_it() -> None:
    """Sources of structured reports are numbered, told to the writer, and are in the result."""
    one, two = "https://one.example.com/", "https://two.example.com/"
    told = script(
        (FIRST, planned("Find the price", "Find the weight")),
        ("Objective: Find the price", answer({"text": "42", "sources": [one, two, "A book"]})),
        ("Objective: Find the weight", answer({"text": "3 kg", "sources": [two]})),
    )
    async with stage(sim=told) as st:
        done = await orchestrate(st.run, lead(), worker(output=Report), "What is it?", rounds=1)
        found = {source.url or source.title: source for source in done.sources}
        assert sorted(source.number for source in done.sources) == [1, 2, 3]
        assert set(found[two].found_by) == {"researcher 1.1", "researcher 1.2"}
        assert found["A book"].found_by == ("researcher 1.1",)
        report = sent(st)[-1]
        assert f"[{found[two].number}] {two}" in report
        assert "Cite the sources" in report


async def test_sources_of_web_searches_are_kept() -> None:
    """What an agent's own answer found or cites counts as well."""
    found = ("Objective: Find", "[[sim:searches=1]]")
    told = script((FIRST, planned(task("Find the price", tools=["web_search"]))), found)
    async with stage(sim=told) as st:
        searcher = worker(tools=[web_search(max_uses=1)])
        done = await orchestrate(st.run, lead(), searcher, "What is it?", rounds=1)
        assert [source.url for source in done.sources] == ["https://simulated.example.com/"]


# ---- money --------------------------------------------------------------------------------------------


async def test_a_report_is_affordable_when_the_cap_is_hit() -> None:
    """Workers are declined; the report is written all the same, of what there is, under the same cap (Z-05)."""
    told = script((FIRST, planned(*names(5))), ("Objective", "[[sim:output=200]]"), times=0)

    def costly(_: Task) -> Any:
        return worker(max_tokens=400, likely_output=1)

    async with stage(sim=told) as st:
        free = await orchestrate(
            st.run, lead(), costly, "What?", rounds=1, report_bytes=2_000, name="free"
        )
        cap = free.cost - Decimal("0.0005")
        for _ in range(60):  # down to where the first worker fits and the last does not
            done = await orchestrate(
                st.run, lead(), costly, "What?", rounds=1, report_bytes=2_000,
                cap=cap, name=f"at-{cap}",
            )  # fmt: skip
            assert done.cost <= cap
            if 0 < done.outcomes.get("ok", 0) < 5:
                break
            cap += Decimal("0.0005")
        assert (done.outcome, done.partial) == (Outcome.BUDGET, True)
        assert 0 < done.outcomes["ok"] < 5
        assert done.value is not None
        st.prove_exact()


async def test_if_the_report_does_not_fit_nothing_is_spent() -> None:
    """It is declined before the first call, and says so."""
    async with stage() as st:
        done = await orchestrate(st.run, lead(), worker(), "What?", cap="0.001")
        assert (done.outcome, done.calls, done.parts, done.value) == (Outcome.BUDGET, 0, (), None)
        assert "nothing was started" in done.reason
        st.prove_exact()


async def test_workers_that_will_probably_not_be_carried_are_not_started() -> None:
    """They are parts with their reason; a worker that is stopped halfway is paid for nothing (O-18)."""
    told = script((FIRST, planned(*names(4))))
    hungry = worker(max_tokens=4_000, likely_output=4_000)
    async with stage(sim=told) as st:
        done = await orchestrate(
            st.run, lead(), hungry, "What?", rounds=1, report_bytes=1_000, cap="0.007"
        )
        assert done.outcome is Outcome.BUDGET
        assert 0 < done.outcomes["ok"] < 4
        assert all("not started" in part.reason for part in done.failed)
        st.prove_exact()


async def test_where_a_trip_is_not_a_decline_all_are_started() -> None:
    """There may be more money than is there now: a policy of the run decides, call by call."""
    told = script((FIRST, planned(*names(4))))
    hungry = worker(max_tokens=4_000, likely_output=4_000)
    async with stage(sim=told, on_trip=Cheaper("claude-haiku-5-5")) as st:
        done = await orchestrate(
            st.run, lead(), hungry, "What?", rounds=1, report_bytes=1_000, cap="0.007"
        )
        assert done.outcomes == {"ok": 4}
        st.prove_exact()


async def test_the_reserve_is_given_back() -> None:
    """Nothing stays set aside, whether the report was written or not."""
    async with stage(sim=script((FIRST, planned("Find it")))) as st:
        done = await orchestrate(st.run, lead(), worker(), "What?", rounds=1)
        assert done.ok
        assert st.run.balance.held_nanos == 0
        st.prove_exact()


async def test_long_reports_are_cut_to_their_share() -> None:
    """Reports in any script never make the closing prompt dearer than what was set aside."""
    told = script(
        (FIRST, planned(*names(5))),
        ("Objective", '[[sim:text=' + '"Ärger\\n" ' * 3_000 + "]]"), times=0,
    )  # fmt: skip
    async with stage(sim=told) as st:
        big = worker(max_tokens=60_000)
        done = await orchestrate(st.run, lead(), big, "What?", rounds=1, report_bytes=3_000)
        assert done.ok
        assert len(sent(st)[-1]) < 6_000
        st.prove_exact()


async def test_a_plan_costs_nothing_and_prints_its_tree(capsys: pytest.CaptureFixture[str]) -> None:
    """Worst and likely cost of lead, workers and report; nothing is sent."""
    async with stage() as st:
        done = await orchestrate(st.run, lead(), worker(cap="0.01"), "What?", plan_only=True)
        assert done.plan is not None
        shown = capsys.readouterr().out
        assert all(
            name in shown for name in ("orchestrate", "lead x2", "researcher x10", "lead-report")
        )
        workers = done.plan.root.children[1]
        assert workers.worst_nanos is not None
        assert workers.worst_nanos <= 10 * 10_000_000
        assert (st.sim.bill.requests, st.run.balance.posted_nanos) == (0, 0)


async def test_it_costs_no_more_than_its_plan_says() -> None:
    """The worst case of the plan is a bound of what a run with full rounds costs."""
    told = script((FIRST, planned(*names(3))), (LATER, planned("Another matter", done=False)))
    async with stage(sim=told) as st:
        planned_result = await orchestrate(st.run, lead(), worker(), "What?", plan_only=True)
        done = await orchestrate(st.run, lead(), worker(), "What?")
        assert planned_result.plan is not None
        assert planned_result.plan.root.worst_nanos is not None
        assert 0 < done.posted_nanos <= planned_result.plan.root.worst_nanos


async def test_what_all_briefs_share_is_cached_without_being_asked() -> None:
    """The whole comes first in every brief: one worker writes it to the cache, the others read it."""
    told = script((FIRST, planned(*names(5))))
    async with stage(sim=told) as st:
        whole = "The house has a wet cellar and an old roof. " * 2_000
        done = await orchestrate(st.run, lead(), worker(), whole, rounds=1)
        reads = [part.tokens["cache_read_tokens"] > 10_000 for part in done.parts]
        assert sorted(reads) == [False, True, True, True, True]
        assert done.saved_nanos > 0
        st.prove_exact()


# ---- ends ---------------------------------------------------------------------------------------------


async def test_cancelling_cancels_the_workers_and_leaks_nothing() -> None:
    """Calls that were sent are in doubt; no hold, slot, task or reserve is left."""
    told = script(
        (FIRST, planned(*names(3))), ("Objective", "[[sim:fault=hang]]"), times=0,
    )  # fmt: skip
    async with stage(sim=told) as st:
        work = asyncio.create_task(orchestrate(st.run, lead(), worker(), "What?"))
        await st.sim.arrived(4)
        work.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await work
        assert caught.value.tally.calls == 4  # type: ignore[attr-defined]
        assert st.run.balance.in_doubt_nanos > 0
        st.prove()


async def test_a_run_that_is_stopped_hands_back_its_parts() -> None:
    """Nothing new leaves, the report neither; what was done is in the result."""
    told = script((FIRST, planned("Find it", "Find that")))
    async with stage(sim=told) as st:

        async def stopping(given: Task) -> str:
            st.run.stop("enough")
            return given.title

        done = await orchestrate(st.run, lead(), stopping, "What?")
        assert done.outcomes["ok"] >= 1
        assert (done.outcome, done.value, done.partial) == (Outcome.CANCELLED, None, True)
        st.prove_exact()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"workers_max": 0}, "workers_max"),
        ({"rounds": 0}, "rounds"),
        ({"workers": {}}, "no workers"),
        ({"workers": {"one": 3}}, "worker 'one'"),
        ({"lead": "nobody"}, "give an Agent"),
        ({"synthesizer": helper(name="writer", cap="0.00001")}, "can't pay for the report"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
async def test_a_callers_mistake_is_one_sentence(fields: dict[str, Any], why: str) -> None:
    """It is said before anything is spent."""
    given = {"lead": lead(), "workers": worker(), **fields}
    async with stage() as st:
        with pytest.raises(ConfigError, match=why):
            await orchestrate(st.run, given.pop("lead"), given.pop("workers"), "What?", **given)
        assert st.sim.bill.requests == 0


async def test_parts_and_node_are_in_the_journal(tmp_path: Any) -> None:
    """Each part with its outcome, and the node with what it came to."""
    told = script((FIRST, planned("Find it", "Find that")))
    async with stage(sim=told, folder=tmp_path) as st:
        done = await orchestrate(st.run, lead(), worker(), "What?", rounds=1, cap="1")
        path = st.run.folder.journal
        assert path is not None
        st.run.journal.flush()
        events = list(read_journal(path))
        assert sum(event["event"] == "part" for event in events) == 2
        end = next(event for event in events if event["event"] == "node_end")
        assert (end["outcome"], end["posted_nanos"]) == ("ok", done.posted_nanos)


@pytest.mark.slow
async def test_overshoot_is_zero_at_500_workers_with_failures_and_cancels() -> None:
    """By the server's own bill, under a cap that carries some of them only."""
    faults = Faults([], seed=7, rates={"overloaded": 0.05, "reset": 0.03, "server_error": 0.02})
    plan = planned(*(task(name, title="t", output_format="", boundaries="") for name in names(500)))
    told = {"cues": (Cue(match=FIRST, say=plan, times=0),), "faults": faults}
    async with stage(sim=told, cap="3") as st:

        def made(given: Task) -> Any:
            if int(given.id.split(".")[1]) % 50 == 0:
                return _cancelled_by_itself()
            return worker(max_tokens=300)

        big = lead(name="lead")
        done = await orchestrate(
            st.run, replace(big, max_tokens=60_000), made, "What?",
            workers_max=500, rounds=1, report_bytes=30_000, cap="0.9",
        )  # fmt: skip
        assert len(done.parts) == 500
        assert 0 < done.outcomes["ok"] < 500
        assert done.outcomes["cancelled"] == 10
        st.prove()
        assert st.sim.bill.nanos <= 900_000_000
        assert done.posted_nanos + done.in_doubt_nanos <= 900_000_000


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [20, 300])
async def test_a_cancel_in_the_middle_of_500_workers_leaks_nothing(arrived: int) -> None:
    """Whenever it comes: no hold, slot, task or reserve is left, and the server billed no more than is counted."""
    plan = planned(*(task(name, title="t", output_format="", boundaries="") for name in names(500)))
    told = {"cues": (Cue(match=FIRST, say=plan, times=0),), "latency_s": 0.02}
    async with stage(sim=told, cap="3") as st:
        big = replace(lead(), max_tokens=60_000)
        work = asyncio.create_task(
            orchestrate(st.run, big, worker(), "What?", workers_max=500, rounds=1, cap="0.9")
        )
        await st.sim.arrived(arrived)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        st.prove()
        assert st.sim.bill.nanos <= 900_000_000
        assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("fan_out-")]


async def _cancelled_by_itself() -> None:
    raise asyncio.CancelledError
