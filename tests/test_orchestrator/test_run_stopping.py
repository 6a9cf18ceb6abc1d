"""Stopping by signals and by ``cancel``: once settles, twice leaves with holds in doubt."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from orchestrator.gate import Gate
from orchestrator.outcomes import Outcome
from orchestrator.simulator import Fault, Faults
from orchestrator.stopping import KillSwitch, signals_to
from patterns import fan_out

from .running import Stage, helper, say, stage


def _hanging(times: int = 0) -> dict[str, Faults]:
    return {"faults": Faults([Fault(kind="hang", times=times)])}


async def _signal(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
async def test_the_first_signal_lets_what_is_in_flight_settle(number: int) -> None:
    """Nothing new starts, the calls under way come to their end, and every item has its part."""
    async with stage(kill_switch=True, gate=Gate(width=2), sim=_hanging()) as st:
        work = asyncio.create_task(fan_out(st.run, helper(), ["a", "b", "c", "d"], width=2))
        await st.sim.arrived(1)
        await _signal(number)
        assert st.run.stopped == "interrupted"
        st.sim.faults.clear()
        st.sim.release()
        done = await work
        arrived = st.sim.stats.arrived
        assert done.outcomes == {"ok": arrived, "cancelled": 4 - arrived}
        st.prove_exact()


async def test_the_second_signal_leaves_with_what_is_in_flight_in_doubt() -> None:
    """Calls that were sent are charged in full until they are resolved, and every item has its part."""
    async with stage(kill_switch=True, sim=_hanging()) as st:
        work = asyncio.create_task(fan_out(st.run, helper(), ["a", "b", "c"], width=2))
        await st.sim.arrived(1)
        await _signal()
        await _signal()
        done = await asyncio.wait_for(work, 2)
        assert done.outcomes == {"cancelled": 3}
        assert done.in_doubt_nanos == st.run.tally.in_doubt_nanos > 0
    st.prove()
    assert st.run.balance.in_doubt_nanos == done.in_doubt_nanos


async def _alone(st: Stage) -> None:
    await say(st.run)


async def _agent(st: Stage) -> None:
    await helper().run(st.run, "Hello")


@pytest.mark.parametrize("work", [_alone, _agent])
async def test_the_second_signal_reaches_whoever_waits_in_the_run(work: object) -> None:
    """A plain call and an agent without a fan-out are left, too."""
    with pytest.raises(asyncio.CancelledError):  # noqa: PT012
        async with stage(kill_switch=True, sim=_hanging()) as st:

            async def press() -> None:
                await st.sim.arrived(1)
                await _signal()
                await _signal()

            pressing = asyncio.create_task(press())
            await work(st)  # type: ignore[operator]
    await pressing
    asyncio.current_task().uncancel()  # type: ignore[union-attr]
    st.prove()
    assert st.run.tally.in_doubt_nanos > 0


async def test_cancel_ends_items_and_not_the_fan_out() -> None:
    """``Run.cancel`` ends what is under way as ``cancelled``; what was done before is kept."""
    async with stage(sim=_hanging(times=1)) as st:
        st.sim.faults.clear()
        st.sim.faults.extend([None, Fault(kind="hang", times=0)])
        work = asyncio.create_task(fan_out(st.run, helper(), ["a", "b", "c", "d"], width=1))
        await st.sim.arrived(2)
        st.run.cancel()
        done = await work
        assert [part.outcome.value for part in done.parts] == ["ok", *["cancelled"] * 3]
        assert done.parts[0].posted_nanos == st.run.balance.posted_nanos > 0
    st.prove()
    assert done.parts[1].in_doubt_nanos == st.run.balance.in_doubt_nanos > 0


async def test_runs_side_by_side_all_hear_a_signal() -> None:
    """One run in another: both stop, and when the inner one has ended the outer one listens still."""
    async with stage(kill_switch=True) as outer:
        async with stage(kill_switch=True) as inner:
            pass
        async with stage(kill_switch=True) as second:
            await _signal()
            assert second.run.stopped == outer.run.stopped == "interrupted"
        assert inner.run.stopped == "it has ended"
        result = await helper().run(outer.run, "Hello")
        assert result.outcome is Outcome.CANCELLED


async def test_after_a_run_signals_are_as_they_were() -> None:
    """The handlers that were there before are back."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with stage(kill_switch=True):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_while_signals_go_elsewhere_a_run_does_not_hear_them() -> None:
    """Whoever asks the person what a signal means hears it alone; afterwards the run hears the next one."""
    heard: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    async with stage(kill_switch=True) as st:
        with signals_to(lambda: heard.append("here")):
            await _signal()
            assert (heard, st.run.stopped) == (["here"], None)
        await _signal()
        assert (heard, st.run.stopped) == (["here"], "interrupted")
    with signals_to(lambda: heard.append("alone")):
        await _signal(signal.SIGTERM)
    assert heard == ["here", "alone"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_another_thread_it_does_nothing() -> None:
    """Signals belong to the main thread; a run elsewhere works without them."""
    failures: list[BaseException] = []

    def work() -> None:
        async def enter() -> None:
            async with stage(kill_switch=True) as st:
                await say(st.run)

        try:
            asyncio.run(enter())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []


def test_the_steps_come_in_their_order() -> None:
    """Stop, leave, abandon; the last says that the process must end."""
    steps: list[str] = []
    switch = KillSwitch(
        lambda: steps.append("stop"), lambda: steps.append("leave"), lambda: steps.append("abandon")
    )
    assert [switch.press() for _ in range(3)] == [False, False, True]
    assert steps == ["stop", "leave", "abandon"]
