"""Cues of the simulator: directives for requests that contain a text, in their order."""

from __future__ import annotations

from orchestrator.simulator import Cue, Simulator
from tests.test_orchestrator.running import say, stage


def _text(reply: object) -> str:
    return "".join(block.text for block in reply.content)  # type: ignore[attr-defined]


async def test_a_cue_is_given_to_the_first_requests_that_contain_its_text() -> None:
    """So often and no more; others, and requests without the text, answer as ever."""
    cues = (
        Cue(match="weather", say="[[sim:text=Rain.]]", times=2),
        Cue(match="weather", say="[[sim:text=Sun.]]", times=0),
    )
    async with stage(sim={"cues": cues}) as st:
        told = [_text(await say(st.run, f"The weather of day {day}?")) for day in range(4)]
        assert told == ["Rain.", "Rain.", "Sun.", "Sun."]
        assert "Simulated" in _text(await say(st.run, "The time?"))
        st.prove_exact()


async def test_a_cue_beats_what_the_prompt_asks_for() -> None:
    """It is read after the directives of the prompt."""
    async with stage(sim={"cues": (Cue(match="Hello", say="[[sim:text=Cue.]]"),)}) as st:
        assert _text(await say(st.run, "Hello [[sim:text=Prompt.]]")) == "Cue."


async def test_a_reset_forgets_cues() -> None:
    """As it forgets faults."""
    async with Simulator(cues=(Cue(match="Hello", say="[[sim:text=Cue.]]"),)) as sim:
        sim.reset()
        assert sim.world.cues.draw(b"Hello") == ""
