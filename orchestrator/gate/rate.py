"""The rate of one group: buckets of requests, input and output tokens that refill all the time.

A burst is half a second's worth, since the API may enforce its limits by the second. Where limits
come from is in ``state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .headers import INPUT_TOKENS, KINDS, OUTPUT_TOKENS, REQUESTS

#: Seconds' worth that a bucket saves up.
CAPACITY_S = 0.5
#: Seconds' worth that the server's bucket is taken to hold: at first, and at least.
_DEPTH_S = 60.0
_DEPTH_MIN_S = 1.0
#: Seconds' worth that given-back tokens may fill it to.
_REFUND_S = 1.5
#: Headers round what is left of tokens to this.
_ROUNDING = 1000
#: Due within this time counts as due: an alarm's rounding must not ring twice.
_SLACK_S = 1e-4
#: Output of a call before the group has answered anything. ``max_tokens`` is no guide: it is not
#: counted.
_FIRST_OUTPUT_TOKENS = 500.0
#: Input tokens a minute that are assumed until the first answer: the lowest documented limit (Fable
#: 5 in the tier Start, August 2026). Otherwise the first calls of a process would all leave at once.
_FIRST_INPUT_PER_MINUTE = 500_000
#: Weight of the past against each new call in running averages.
_MEMORY = 0.95
#: A 429 within known limits is either an error of ours or means that somebody else uses them too:
#: one that comes alone costs little, each that follows within the time of recovery costs more.
_SHARE_CUT_FIRST = 0.05
_SHARE_CUT_AGAIN = 0.2
_SHARE_MIN = 0.05
_SHARE_AGAIN_S = 10.0
#: Seconds in which a cut is made up for: fast at first, slow near where it failed, then faster again.
_SHARE_RECOVERY_S = 30.0
#: The most that is taken once a 429 has come: what is left makes up for errors that would add up.
_SHARE_MOST = 0.98


class Charge(NamedTuple):
    """What one call takes from the buckets of tokens."""

    input_tokens: float
    output_tokens: float

    def corrected(self, input_tokens: float | None, output_tokens: float | None) -> Charge:
        """The same with what is known by now."""
        return Charge(
            input_tokens=self.input_tokens if input_tokens is None else input_tokens,
            output_tokens=self.output_tokens if output_tokens is None else output_tokens,
        )

    def minus(self, other: Charge) -> Charge:
        """The difference, negative where the other is larger."""
        return Charge(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
        )


class Bucket:
    """One limit, twice: what may go in a burst, and what the server's own bucket should hold.

    The burst (``level``) smooths: a call that needs more than it can hold goes when it is full and
    leaves debt, which the refill pays first. The other (``depth``) sees to it that a large call
    goes only when the server can have saved that much; it starts as the documented minute's worth
    and is taken to be shallower with each 429.
    """

    __slots__ = ("_asked", "_at", "_depth", "_depth_s", "_level", "_per_s", "taken")

    def __init__(self, per_minute: float, now: float, *, level: float) -> None:
        self._per_s = per_minute / 60
        self._level = min(level, self.capacity)
        self._depth_s = _DEPTH_S
        self._depth = self._per_s * _DEPTH_S
        self._asked = 0.0
        self._at = now
        self.taken = 0.0

    @property
    def capacity(self) -> float:
        """The most that goes in a burst."""
        return max(1.0, self._per_s * CAPACITY_S)

    def refill(self, now: float) -> None:
        """Add what came in since the last time."""
        if now <= self._at:
            return
        came = (now - self._at) * self._per_s
        self._at = now
        if self._level < self.capacity:
            self._level = min(self.capacity, self._level + came)
        deepest = self._deepest()
        if self._depth < deepest:
            self._depth = min(deepest, self._depth + came)

    def set_rate(self, per_minute: float, now: float) -> None:
        """Refill at another rate from now on."""
        self.refill(now)
        is_lower = per_minute / 60 < self._per_s
        self._per_s = per_minute / 60
        if is_lower:
            self._level = min(self._level, self.capacity)

    def correct_rate(self, per_minute: float, now: float) -> None:
        """This has been the rate all the time: what was taken stays taken."""
        gone = self._per_s * _DEPTH_S - self._depth
        self.set_rate(per_minute, now)
        self._depth = self._per_s * _DEPTH_S - gone

    def ready_at(self, now: float, need: float) -> float:
        """When a call that needs this much may go, if nobody else takes before."""
        self.refill(now)
        # A call larger than the limit of a minute goes after a minute: the server decides.
        self._asked = min(need, self._per_s * _DEPTH_S)
        missing = max(min(need, self.capacity) - self._level, self._asked - self._depth)
        if missing <= 0:
            return now
        # ``_at`` is later than now while a pause lasts: nothing comes in before.
        return self._at + missing / self._per_s

    def take(self, amount: float) -> None:
        """Take, into debt if need be."""
        self._level -= amount
        self._depth -= amount
        self.taken += amount

    def give_back(self, amount: float, *, refused: bool = False) -> None:
        """Give back what was taken too much; of what was refused, no more than makes a burst."""
        spare_s = 0.0 if refused else min(_REFUND_S, self._depth_s - CAPACITY_S)
        ceiling = max(self._level, self._per_s * spare_s, self.capacity)
        self._level = min(self._level + amount, ceiling)
        self._depth = min(self._depth + amount, max(self._depth, self._deepest()))
        self.taken -= amount

    def lower_to(self, remaining: float, *, taken: float, age_s: float) -> None:
        """The server has less than we saved up: no burst. Half stays: its word may be old.

        (At the limit the level is near zero anyway; taking that as well would starve us by our own
        echo. For the same reason what came in since its word and what left since are counted.)
        """
        left = remaining + age_s * self._per_s - (self.taken - taken)
        self._level = min(self._level, max(left, self.capacity / 2))

    def make_shallower(self) -> None:
        """The server said no within its limit: it saves up less than we thought."""
        self._depth_s = max(_DEPTH_MIN_S, self._depth_s / 4)

    def empty_until(self, when: float) -> None:
        """Hold nothing and let nothing in before ``when``."""
        self._level = min(self._level, 0.0)
        self._depth = min(self._depth, 0.0)
        self._at = max(self._at, when)

    def _deepest(self) -> float:
        return max(1.0, self._per_s * self._depth_s, self._asked)


class Rate:
    """The buckets of a group, what its calls are expected to use, and its share of the limits."""

    __slots__ = (
        "_assumed",
        "_buckets",
        "_charged",
        "_counted",
        "_limits",
        "_mean_output",
        "_share_at",
        "_share_cut",
        "_share_cut_at",
        "_share_goal",
    )

    def __init__(self, now: float) -> None:
        first = Bucket(_FIRST_INPUT_PER_MINUTE, now, level=_FIRST_INPUT_PER_MINUTE)
        self._buckets: dict[str, Bucket] = {INPUT_TOKENS: first}
        self._assumed = True
        self._limits: dict[str, int] = {}
        self._share_goal = 1.0
        self._share_cut = 0.0
        self._share_cut_at: float | None = None
        self._share_at = 0.0
        self._charged = 0.0
        self._counted = 0.0
        self._mean_output: float | None = None

    @property
    def limits(self) -> Mapping[str, int]:
        """Per kind, how many a minute."""
        return self._limits

    def limit(self, kind: str, per_minute: int, now: float) -> None:
        """Set or change the limit of one kind."""
        self._limits[kind] = per_minute
        bucket = self._buckets.get(kind)
        if kind == INPUT_TOKENS and self._assumed and bucket is not None:
            self._assumed = False
            bucket.correct_rate(per_minute * self.share(now), now)
            return
        if bucket is None:
            # One request to begin with, so that a process's first calls come one by one.
            level = 1.0 if kind == REQUESTS else float(per_minute)
            self._buckets[kind] = Bucket(per_minute * self.share(now), now, level=level)
        else:
            bucket.set_rate(per_minute * self.share(now), now)

    def answered(self) -> None:
        """A call was answered well: a limit that its headers did not name is assumed no longer."""
        if self._assumed:
            self._assumed = False
            del self._buckets[INPUT_TOKENS]

    def expect(self, estimate: Charge) -> Charge:
        """What a call with this estimate is likely to count, by what earlier calls did.

        Input estimates are corrected by the measured ratio of counted to estimated tokens (cached
        reads do not count, and bounds by bytes are high); output is the running mean, never above
        the estimate.
        """
        ratio = self._counted / self._charged if self._charged > 0 else 1.0
        mean = _FIRST_OUTPUT_TOKENS if self._mean_output is None else self._mean_output
        return Charge(
            input_tokens=estimate.input_tokens * min(2.0, max(0.01, ratio)),
            output_tokens=min(estimate.output_tokens, mean),
        )

    def learn_input(self, *, estimated: float, counted: float) -> None:
        """One call ended: remember how its input compares with its estimate (tokens)."""
        self._charged = self._charged * _MEMORY + estimated
        self._counted = self._counted * _MEMORY + counted

    def learn_output(self, tokens: float) -> None:
        """One call ended: remember its output."""
        mean = self._mean_output
        self._mean_output = tokens if mean is None else mean * _MEMORY + tokens * (1 - _MEMORY)

    def ready_at(self, now: float, charge: Charge) -> float:
        """When a call may go; ``now`` or earlier if at once."""
        if not self._buckets:
            return now
        self._grow_share(now)
        ready = now
        for kind, bucket in self._buckets.items():
            ready = max(ready, bucket.ready_at(now, _need(charge, kind)))
        return ready if ready - now > _SLACK_S else now

    def take(self, charge: Charge) -> Mapping[str, float]:
        """A call goes: take its request and its tokens; per kind, all that was taken so far."""
        for kind, bucket in self._buckets.items():
            bucket.take(_need(charge, kind))
        return {kind: bucket.taken for kind, bucket in self._buckets.items()}

    def give_back(self, charge: Charge, *, request: bool = False, refused: bool = False) -> None:
        """A call did not go (``request``), was ``refused``, or counted less; negative: takes more."""
        for kind, bucket in self._buckets.items():
            if kind != REQUESTS:
                bucket.give_back(_need(charge, kind), refused=refused)
            elif request:
                bucket.give_back(1.0)

    def hint(
        self, remaining: Mapping[str, int], now: float, *, taken: Mapping[str, float], age_s: float
    ) -> None:
        """What the server says is left; used only where it is less than we think.

        Args:
            remaining: per kind, as a response says.
            taken: per kind, all that was taken when its call left, this included.
            age_s: seconds since then.
        """
        for kind in KINDS:
            bucket = self._buckets.get(kind)
            if bucket is not None and kind in remaining:
                bucket.refill(now)
                known = kind in taken
                bucket.lower_to(
                    remaining[kind],
                    taken=taken[kind] if known else bucket.taken,
                    age_s=age_s if known else 0.0,
                )

    def is_short(self, charge: Charge | None, remaining: Mapping[str, int]) -> bool | None:
        """Was this what a refused call lacked? None if its answer doesn't say what is left."""
        if charge is None or not self._limits.keys() <= remaining.keys() or not remaining:
            return None
        return any(
            left < _need(charge, kind) + (0 if kind == REQUESTS else _ROUNDING)
            for kind, left in remaining.items()
        )

    def share(self, now: float) -> float:
        """The part of the limits that is used at present."""
        if self._share_cut_at is None:
            return 1.0
        # A cubic, as TCP has it: most of the time is spent just below where the last 429 came.
        way = max(0.0, now - self._share_cut_at) / _SHARE_RECOVERY_S - 1.0
        share = self._share_goal * (1.0 + self._share_cut * way**3)
        return min(_SHARE_MOST, max(_SHARE_MIN, share))

    def cut_share(self, now: float) -> None:
        """An episode of 429 began although we kept within the limits."""
        if self._limits:
            last = self._share_cut_at
            again = last is not None and now - last < _SHARE_AGAIN_S
            self._share_goal = self.share(now)
            self._share_cut = _SHARE_CUT_AGAIN if again else _SHARE_CUT_FIRST
            self._share_cut_at = now
            self._apply_share(now)
        for bucket in self._buckets.values():
            bucket.make_shallower()

    def empty_until(self, when: float) -> None:
        """A pause lasts until then: nothing comes in before, so that its end is no burst."""
        for bucket in self._buckets.values():
            bucket.empty_until(when)

    def _grow_share(self, now: float) -> None:
        # Once a second: a rate that changes with every call would be arithmetic for nothing.
        if self._share_cut_at is not None and now - self._share_at >= 1.0:
            self._apply_share(now)

    def _apply_share(self, now: float) -> None:
        self._share_at = now
        for kind, bucket in self._buckets.items():
            limit = self._limits.get(kind, _FIRST_INPUT_PER_MINUTE)
            bucket.set_rate(limit * self.share(now), now)


def _need(charge: Charge, kind: str) -> float:
    if kind == INPUT_TOKENS:
        return charge.input_tokens
    return charge.output_tokens if kind == OUTPUT_TOKENS else 1.0
