"""The example in each pattern's docstring runs as it stands, against the simulator."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import patterns
from orchestrator.agent import Agent
from orchestrator.simulator import Cue
from patterns.hierarchy import Team
from tests.test_orchestrator.running import helper, stage
from tests.test_patterns.leading import FIRST, LATER, planned

#: The names that the examples use beside ``run`` and the pattern itself.
GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "fan_out": lambda: {
        "reviewer": helper(name="reviewer"),
        "editor": helper(name="editor"),
        "chapters": ["One.", "Two."],
    },
    "vote": lambda: {"juror": helper(name="juror")},
    "pipeline": lambda: {
        "outline": helper(name="outline"),
        "draft": helper(name="draft"),
        "polish": helper(name="polish"),
        "long_enough": lambda text: True,
        "topics": ["Sun", "Moon"],
    },
    "route": lambda: {
        "triage": lambda mail: "outage",
        "clerk": helper(name="clerk"),
        "engineer": helper(name="engineer"),
        "mail": "It is dark here.",
    },
    "refine": lambda: {
        "writer": helper(name="writer"),
        "critic": lambda draft: None,
    },
    "orchestrate": lambda: {
        "lead": helper(name="lead", max_tokens=400),
        "researcher": helper(name="researcher"),
    },
    "hierarchy": lambda: {
        "Team": Team,
        "director": helper(name="director", max_tokens=400),
        "lead": helper(name="lead", max_tokens=400),
        "plumber": helper(name="plumber"),
        "surveyor": helper(name="surveyor"),
    },
    "handoff": lambda: {name: helper(name=name) for name in ("reception", "billing", "technician")},
    "board": lambda: {name: helper(name=name) for name in ("historian", "surveyor")},
    "findings": lambda: {"Agent": Agent},
}
CUES = (
    Cue(match=LATER, say=planned(done=True), times=0),
    Cue(match="heating", say="[[sim:output=20]]", times=1),
    Cue(match=FIRST, say=planned("Look at it"), times=1),
)


def example_of(module: str) -> str:
    """The first indented block of a module's docstring, as code."""
    doc = importlib.import_module(f"patterns.{module}").__doc__ or ""
    blocks = re.findall(r"(?:^    .*\n?|^\s*\n)+", doc, flags=re.MULTILINE)
    code = next((block for block in blocks if block.strip()), "")
    return textwrap.dedent(code).strip()


async def run_example(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run code that awaits; an ellipsis line stands for other work."""
    compiled = compile(code, "<docstring>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waiting = eval(compiled, names)
    if waiting is not None:
        await waiting
    return names


@pytest.mark.parametrize("module", list(GIVEN))
async def test_the_example_runs(module: str, tmp_path: Path) -> None:
    """Without a change, and without a failure that it doesn't mention."""
    code = example_of(module)
    assert "run" in code, f"patterns.{module} has no example in its docstring"
    async with stage(sim={"cues": CUES}, folder=tmp_path) as st:
        names = {**vars(patterns), **GIVEN[module](), "run": st.run}
        made_of = importlib.import_module(f"patterns.{module}")
        names.update(
            {name: getattr(made_of, name) for name in (module, "Board") if hasattr(made_of, name)}
        )
        after = await run_example(code, names)
        results = [value for value in after.values() if isinstance(value, patterns.Result)]
        assert all(result.calls for result in results)
        assert results or module == "findings", "the example makes no result"
        st.prove()


def test_every_pattern_has_an_example_here() -> None:
    """A pattern is a function of the package that takes a run and a cap: each is in the table above."""
    found = {
        name
        for name, thing in vars(patterns).items()
        if inspect.isfunction(thing) and "plan_only" in inspect.signature(thing).parameters
    }
    assert found == set(GIVEN) - {"findings"}
