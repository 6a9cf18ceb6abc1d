"""Route: one choice, one specialist, a named fallback where the choice can't be trusted."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome
from patterns import classifier, route
from tests.test_orchestrator.running import MODEL, helper, stage

ROUTES = {
    "billing": helper(name="billing", cap="0.50"),
    "outage": helper(name="outage", model="claude-sonnet-5-5"),
}


def _chooser(value: Any) -> Any:
    async def choose(_: Any) -> Any:
        return value

    return choose


async def test_a_classifier_hands_a_request_to_its_specialist() -> None:
    """The small model's choice is one of the routes, and the specialist answers with its own model."""
    async with stage() as st:
        by = classifier(
            {"billing": "invoices and refunds", "outage": "things that are down"}, model=MODEL
        )
        done = await route(
            st.run, by, ROUTES, "an invoice and a refund: billing", confidence_least=0
        )
        assert (done.outcome, done.route) == (Outcome.OK, done.chosen)
        assert done.route in ROUTES
        assert [part.name for part in done.parts] == ["router", done.route]
        assert "Simulated answer" in done.value
        scopes = {line.scope.removeprefix(st.run.scope) for line in st.run.ledger.lines()}
        assert scopes == {"/route/router", f"/route/{done.route}"}
        st.prove_exact()


@pytest.mark.parametrize(
    ("said", "taken", "fell_back"),
    [
        pytest.param("outage", "outage", False, id="a plain name"),
        pytest.param(("outage", 0.9), "outage", False, id="sure"),
        pytest.param(("outage", 0.2), "billing", True, id="unsure"),
        pytest.param({"route": "outage", "confidence": 0.5}, "outage", False, id="at the border"),
        pytest.param(("outage", float("nan")), "billing", True, id="not a number"),
        pytest.param(("outage", "high"), "outage", False, id="a pair with a word"),
        pytest.param("weather", "billing", True, id="none of the routes"),
        pytest.param(None, "billing", True, id="nothing"),
    ],
)
async def test_low_confidence_goes_to_the_fallback(said: Any, taken: str, fell_back: bool) -> None:
    """And so does a choice that is none of the routes."""
    async with stage() as st:
        done = await route(st.run, _chooser(said), ROUTES, "Help", fallback="billing")
        assert (done.route, done.fell_back, done.outcome) == (taken, fell_back, Outcome.OK)


async def test_a_plain_function_can_choose() -> None:
    """One that isn't async is believed, too, and not taken for a failure that the fallback mends."""
    async with stage() as st:
        done = await route(st.run, lambda _: ("outage", 0.9), ROUTES, "Help", fallback="billing")
        assert (done.route, done.fell_back, done.confidence) == ("outage", False, 0.9)


async def test_without_a_fallback_an_unsure_choice_ends_there() -> None:
    """No specialist is asked."""
    async with stage() as st:
        done = await route(st.run, _chooser(("outage", 0.1)), ROUTES, "Help")
        assert (done.outcome, done.route, len(done.parts)) == (Outcome.INVALID, "", 1)
        assert "0.10 sure of outage" in done.reason
        assert st.sim.bill.nanos == 0


async def test_a_classifier_that_fails_goes_to_the_fallback() -> None:
    """Its failure is a part."""

    async def broken(_: Any) -> str:
        raise KeyError("x")

    async with stage() as st:
        done = await route(st.run, broken, ROUTES, "Help", fallback="outage")
        assert (done.outcome, done.route) == (Outcome.OK, "outage")
        assert [part.outcome.value for part in done.parts] == ["infra", "ok"]


async def test_a_choice_that_money_stopped_is_not_a_fallback() -> None:
    """The specialist couldn't go on either."""
    async with stage() as st:
        by = classifier({"billing": "a", "outage": "b"}, model=MODEL, cap="0.000001")
        done = await route(st.run, by, ROUTES, "Help", fallback="billing")
        assert (done.outcome, len(done.parts)) == (Outcome.BUDGET, 1)


async def test_a_specialists_failure_is_the_results() -> None:
    """With its reason."""
    async with stage() as st:
        done = await route(st.run, _chooser("outage"), ROUTES, "Help [[sim:refuse=5]]")
        assert (done.outcome, done.value) == (Outcome.REFUSAL, None)


async def test_a_plan_names_the_dearest_route(capsys: pytest.CaptureFixture[str]) -> None:
    """And spends nothing."""
    async with stage() as st:
        by = classifier({"billing": "a", "outage": "b"}, model=MODEL)
        done = await route(st.run, by, ROUTES, "Help", plan_only=True)
        assert done.plan is not None
        assert [step.name for step in done.plan.root.children] == ["router", "outage"]
        assert "dearest of 2" in capsys.readouterr().out
        assert st.sim.bill.nanos == 0


async def test_a_fallback_must_be_a_route() -> None:
    """It is said before anything is sent."""
    async with stage() as st:
        with pytest.raises(ConfigError, match="fallback"):
            await route(st.run, _chooser("x"), ROUTES, "Help", fallback="nobody")
