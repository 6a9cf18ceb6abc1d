"""What every store of a ledger promises, as numbered contracts that any store can be run against.

Each contract gets a fresh store. Contracts that need a second door to the same storage (another process,
say) are skipped for stores that have none. A broken promise is an ``AssertionError`` that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from budgets.stores.protocol import Store

from . import (
    contracts_of_lines,
    contracts_of_reserves,
    contracts_of_sums,
    contracts_of_transactions,
)

MakeStore = Callable[[], Store]
#: A second store on the storage of the first.
OpenAgain = Callable[[Store], Store]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One promise.

    Attributes:
        number: stays the same when contracts are added.
        promise: the sentence.
        check: raises AssertionError if a store breaks it.
        needs_second: True if it is about two stores on one storage.
    """

    number: int
    promise: str
    check: Callable[..., None]
    needs_second: bool

    def __str__(self) -> str:
        return f"{self.number:02d}-{self.check.__name__}"

    def run(self, make_store: MakeStore, open_again: OpenAgain | None = None) -> bool:
        """Run it on a fresh store.

        Returns:
            False if it was skipped, since there is no ``open_again``.

        Raises:
            AssertionError: the promise is broken; the message begins with its number and sentence.
        """
        if self.needs_second and open_again is None:
            return False
        store = make_store()
        second = open_again(store) if self.needs_second and open_again else None
        try:
            self.check(*([store] if second is None else [store, second]))
        except Exception as error:
            raise AssertionError(
                f"store contract {self.number}: {self.promise}: {error!r}"
            ) from error
        finally:
            if second is not None:
                second.close()
            store.close()
        return True


def _numbered() -> tuple[Contract, ...]:
    checks = [
        *contracts_of_transactions.ALONE,
        *contracts_of_lines.ALONE,
        *contracts_of_sums.ALONE,
    ]
    found: list[tuple[Callable[..., None], bool]] = [(check, False) for check in checks]
    found += [(check, True) for check in contracts_of_transactions.WITH_SECOND]
    # Later ones come last: numbers stay.
    found += [(check, False) for check in contracts_of_reserves.ALONE]
    found += [(check, True) for check in contracts_of_reserves.WITH_SECOND]
    return tuple(
        Contract(
            number=number,
            promise=(check.__doc__ or check.__name__).strip().rstrip("."),
            check=check,
            needs_second=needs_second,
        )
        for number, (check, needs_second) in enumerate(found, 1)
    )


STORE_CONTRACTS: tuple[Contract, ...] = _numbered()


def run_store_contract(
    make_store: MakeStore, open_again: OpenAgain | None = None
) -> tuple[str, ...]:
    """Run every contract, each on a fresh store.

    Args:
        make_store: makes an empty store; it is closed after each contract.
        open_again: opens the storage of a store a second time; None skips contracts about that.

    Returns:
        The names of the contracts that were kept.

    Raises:
        AssertionError: the first broken promise, with its number and sentence.
    """
    return tuple(str(c) for c in STORE_CONTRACTS if c.run(make_store, open_again))
