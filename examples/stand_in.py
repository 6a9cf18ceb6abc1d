"""Where the examples call: the real API if there is a key, else the stand-in on loopback, where nothing is spent."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.simulator import Cue, running_simulator

SAYS = Path(__file__).parent / "stand-in-says.toml"


@contextmanager
def api(example: str = "") -> Iterator[dict[str, str]]:
    """Arguments for an Anthropic client: none where ``ANTHROPIC_API_KEY`` is set, else those of the stand-in.

    Args:
        example: whose lines in ``stand-in-says.toml`` the stand-in is to say; the real API never sees them.
    """
    if os.environ.get("ANTHROPIC_API_KEY"):
        yield {}
        return
    lines = tomllib.loads(SAYS.read_text(encoding="utf-8")).get(example, [])
    with running_simulator(cues=[Cue(**line) for line in lines]) as simulator:
        print(
            "SIMULATED: there is no ANTHROPIC_API_KEY, so a stand-in answers and nothing is spent"
        )
        yield {"base_url": simulator.url, "api_key": "simulated"}
