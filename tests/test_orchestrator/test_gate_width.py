"""The adaptive width of a group: slow start, cuts by episode, and the way back."""

import itertools
import random

import pytest

from orchestrator.gate import Gate, GroupStatistics, Ticket

from .gate_clock import ManualClock

MODEL = "claude-opus-5-5"


class Traffic:
    """Calls through one gate, in waves that use all the width that there is."""

    def __init__(self, width: int, **options: int) -> None:
        self.clock = ManualClock()
        self.gate = Gate(width, clock=self.clock, jitter=lambda: 0.0, **options)

    @property
    def group(self) -> GroupStatistics:
        return self.gate.statistics().groups["claude-opus-5-5"]

    def fill(self) -> list[Ticket]:
        """Enter and pace as many calls as fit."""
        tickets = [self.one()]
        tickets += [self.one() for _ in range(self.group.width - 1)]
        return tickets

    def one(self) -> Ticket:
        # Apart from the context of the test: these are strangers, not calls nested in each other.
        import contextvars

        ticket = contextvars.Context().run(self.gate.enter_sync, MODEL)
        ticket.pace_sync(input_tokens=10, output_tokens=10)
        return ticket

    def wave(self, status: int = 200) -> None:
        """All of the width answers with one status."""
        tickets = self.fill()
        for ticket in tickets:
            ticket.observe(status, {})
        for ticket in tickets:
            ticket.close()

    def warm_up(self) -> None:
        for _ in range(20):
            self.wave()


def test_slow_start_doubles_each_full_round() -> None:
    """A new gate starts with 8 at once and doubles with each fully used, successful round (R-14)."""
    traffic = Traffic(64)
    widths = []
    for _ in range(5):
        traffic.wave()
        widths.append(traffic.group.width)
    assert widths == [16, 32, 64, 64, 64]


def test_width_does_not_grow_unused() -> None:
    """Successes of a single caller don't widen the gate: nothing shows that more would work."""
    traffic = Traffic(64)
    for _ in range(100):
        ticket = traffic.one()
        ticket.observe(200, {})
        ticket.close()
    assert traffic.group.width == 8


def test_one_episode_of_429_cuts_once() -> None:
    """Sixty-four calls on the way that all come back 429 are one episode: half, not nothing."""
    traffic = Traffic(64)
    traffic.warm_up()
    traffic.wave(429)
    assert traffic.group.width == 32
    assert traffic.group.throttled == 64


@pytest.mark.parametrize("status", [500, 502, 503, 529])
def test_server_errors_stop_growth_but_never_cut(status: int) -> None:
    """A 5xx or 529 leaves the width as it is and stops its growth for five seconds."""
    traffic = Traffic(64)
    traffic.wave()
    for _ in range(10):
        traffic.wave(status)
    traffic.wave()
    assert traffic.group.width == 16
    traffic.clock.advance(5)
    traffic.wave()
    assert traffic.group.width == 32


@pytest.mark.parametrize("status", [400, 401, 402, 404, 413])
def test_the_callers_own_errors_say_nothing(status: int) -> None:
    """A 4xx of the caller's making neither widens nor narrows."""
    traffic = Traffic(64)
    traffic.wave(status)
    assert traffic.group.width == 8


@pytest.mark.parametrize("seed", range(5))
def test_after_a_thousand_failures_the_width_is_what_it_was(seed: int) -> None:
    """After 1,000 failures of every kind, success brings all of the width back."""
    traffic = Traffic(64)
    traffic.warm_up()
    chance = random.Random(seed)
    for _ in range(1000):
        ticket = traffic.one()
        ticket.observe(chance.choice([429, 429, 500, 503, 529]), {})
        ticket.close()
        traffic.clock.advance(max(traffic.group.paused_s, chance.random()))
    assert traffic.group.width == 1
    for waves in itertools.count(1):
        traffic.wave()
        traffic.clock.advance(2)
        if traffic.group.width == 64:
            break
        assert waves < 100
    assert traffic.gate.statistics().in_use == 0
    assert traffic.group.width_max == 64


def test_after_a_thousand_failures_idle_time_restores_the_width() -> None:
    """With no traffic at all after 1,000 failures, the width is what it was a few minutes later."""
    traffic = Traffic(64)
    traffic.warm_up()
    for _ in range(1000):
        ticket = traffic.one()
        ticket.observe(429, {})
        ticket.close()
        traffic.clock.advance(traffic.group.paused_s)
    assert traffic.group.width == 1
    traffic.clock.advance(600)
    assert traffic.group.width == 64


def test_idle_time_gives_no_more_than_was_lost() -> None:
    """A gate that never was wider than 8 is not wider after an idle hour."""
    traffic = Traffic(64)
    traffic.one().close()
    traffic.clock.advance(3600)
    assert traffic.group.width == 8


def test_the_gate_is_never_wider_than_the_pool() -> None:
    """A width above the connection pool is the pool's width: waiting happens in the gate."""
    traffic = Traffic(64, pool=5)
    tickets = traffic.fill()
    assert len(tickets) == 5
    assert traffic.gate.statistics().width == 5


@pytest.mark.parametrize(
    "option", ["width", "pool", "requests_per_minute", "input_tokens_per_minute"]
)
def test_nothing_below_one_is_accepted(option: str) -> None:
    """A width, pool or limit of zero would wait for ever and is refused by name."""
    with pytest.raises(ValueError, match=option):
        Gate(**{option: 0})  # type: ignore[arg-type]
