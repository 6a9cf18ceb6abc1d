"""The garbage collector: run less often, since it would walk through all calls under way again and again.

A call in flight is a few hundred objects that come and go by counting references alone. With dozens of them
Python's default, a run for every 700 new objects, cost a third of all that metering adds to a call (Python
3.11, 64 calls at once, ``benchmarks/overhead.py``), and found nothing.
"""

from __future__ import annotations

import gc

#: New objects before a run. Rings that nobody else frees wait that much longer: a few megabytes at most. Where
#: they hold a slot or money for which others wait, ``budgets.stalls`` has them collected.
_NEW_OBJECTS = 20_000
#: What Python begins with. Whoever has chosen something else knows why.
_DEFAULTS = frozenset({700, 2_000})


def calm_collector() -> None:
    """Raise the first threshold of the process's garbage collector; not where somebody has set it already."""
    first, *others = gc.get_threshold()
    if first in _DEFAULTS:
        gc.set_threshold(_NEW_OBJECTS, *others)
