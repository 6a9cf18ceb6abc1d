"""For tests of your own: a clock moved by hand, and the promises that every store of a ledger has to keep.

Nothing here imports a test framework. With pytest::

    @pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=str)
    def test_my_store(contract):
        contract.run(make_store)
"""

from .clock import ManualClock
from .store_contract import STORE_CONTRACTS, Contract, run_store_contract

__all__ = ["STORE_CONTRACTS", "Contract", "ManualClock", "run_store_contract"]
