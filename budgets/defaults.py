"""The caps that apply where nobody has set any, so that nothing ever runs without one.

Six levels, each about four or five of the one below, small enough that a mistake at night costs a dinner and
not a salary: a call $2, a session (one run, or one meter's scope) $5, a day $25, a week $100, a month $300,
a year $2,000. A call that any cap of the user's covers is not limited by them.
"""

from __future__ import annotations

from .caps import Cap

DEFAULT_AMOUNTS: dict[str, str] = {
    "call": "2",
    "run": "5",
    "day": "25",
    "week": "100",
    "month": "300",
    "year": "2000",
}


def default_caps(*, scope: str = "", tz: str = "UTC") -> tuple[Cap, ...]:
    """The six defaults on a scope."""
    return tuple(
        Cap(amount, per=per, scope=scope, tz=tz, owner="default")
        for per, amount in DEFAULT_AMOUNTS.items()
    )


def fallback_caps() -> tuple[Cap, ...]:
    """The defaults for calls that no other cap covers, real and simulated."""
    return (*default_caps(), *default_caps(scope="simulated"))
