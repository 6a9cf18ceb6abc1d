"""A lease: one slot in use, and what its call took from the rate.

It knows neither task nor thread; who holds which slots travels in a context variable, so that
tasks and threads started inside an open call count as its holder too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rate import Charge
    from .state import GroupState
    from .waiters import Waiter


class Lease:
    """One slot. Changed only under the gate's lock.

    Attributes:
        gate_id: which gate it is of.
        group: which group it counts in.
        is_open: it still counts.
        entered_at: when it got the slot, in monotonic seconds.
        sent_at: when it left; until then the same.
        lender: the slot of an enclosing call that let this one in beyond the width; None if
            ordinary.
        loan: the slot that was let in on this one's account.
        waiter: its place in the queue for the rate, while it waits there.
        is_paced: it has asked for the rate.
        estimated_input: what the caller thought, in tokens.
        charge: what it has taken from the rate.
        taken: per kind, all that the group had taken when it left.
        input_tokens, output_tokens: what really counted; None until known.
        status: the last status that was seen; 0 for none.
        is_learned: its counts have gone into the averages.
    """

    __slots__ = (
        "charge",
        "entered_at",
        "estimated_input",
        "gate_id",
        "group",
        "input_tokens",
        "is_learned",
        "is_open",
        "is_paced",
        "lender",
        "loan",
        "output_tokens",
        "sent_at",
        "status",
        "taken",
        "waiter",
    )

    def __init__(self, *, gate_id: int, group: GroupState, now: float) -> None:
        self.gate_id = gate_id
        self.group = group
        self.is_open = True
        self.entered_at = now
        self.sent_at = now
        self.lender: Lease | None = None
        self.loan: Lease | None = None
        self.waiter: Waiter | None = None
        self.is_paced = False
        self.estimated_input = 0.0
        self.charge: Charge | None = None
        self.taken: Mapping[str, float] = {}
        self.input_tokens: float | None = None
        self.output_tokens: float | None = None
        self.status = 0
        self.is_learned = False


_HELD: ContextVar[tuple[Lease, ...]] = ContextVar("earmark_gate_held", default=())


def held(gate_id: int) -> tuple[Lease, ...]:
    """The open slots of one gate that this context holds, outermost first."""
    leases = _HELD.get()
    if not leases:
        return ()
    return tuple(lease for lease in leases if lease.is_open and lease.gate_id == gate_id)


def hold(lease: Lease) -> None:
    """This context holds one more slot."""
    leases = _HELD.get()
    _HELD.set((*(other for other in leases if other.is_open), lease) if leases else (lease,))
