"""Where the examples call: the real API if there is a key, else the stand-in on loopback, where nothing is spent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.simulator import running_simulator


@contextmanager
def api() -> Iterator[dict[str, str]]:
    """Arguments for an Anthropic client: none where ``ANTHROPIC_API_KEY`` is set, else those of the stand-in."""
    if os.environ.get("ANTHROPIC_API_KEY"):
        yield {}
        return
    with running_simulator() as simulator:
        print(
            "SIMULATED: there is no ANTHROPIC_API_KEY, so a stand-in answers and nothing is spent"
        )
        yield {"base_url": simulator.url, "api_key": "simulated"}
