"""Caps that can be watched and moved: what is posted, held and left, and a cap that opens again when it is raised.

You will see a day's cap being used up, the decline with its facts, and calls going through after a person
raised the cap while the program ran. Costs less than $0.005.
"""

from __future__ import annotations

from anthropic import Anthropic
from stand_in import api

from budgets import BudgetExceeded, Cap, Ledger
from orchestrator import Meter

DAY = Cap("0.001", scope="app", per="day", tz="Europe/Berlin", owner="the team")
QUESTION = [{"role": "user", "content": "What is a good name for a ledger? Think of three."}]


def call_until_declined(client: Anthropic, most: int) -> BudgetExceeded | None:
    for _ in range(most):
        try:
            client.messages.create(model="claude-haiku-5-5", max_tokens=150, messages=QUESTION)
        except BudgetExceeded as error:
            return error
    return None


def show(ledger: Ledger) -> None:
    now = ledger.balance("app")
    print(f"posted ${now.posted:.6f}  held ${now.held:.6f}  remaining ${now.remaining:.6f}")


def main() -> None:
    with (
        Ledger(caps=[DAY]) as ledger,
        api() as options,
        Anthropic(middleware=[Meter(ledger, scope="app")], **options) as client,
    ):
        show(ledger)
        declined = call_until_declined(client, most=100)
        assert declined is not None
        show(ledger)
        print(f"declined by {declined.cap}, set by {declined.cap.owner}")
        print(f"asked ${declined.asked:.6f}; it opens again at {declined.reopens_at}")

        # From another process: earmark budget set 0.003 --scope app --per day --tz Europe/Berlin
        ledger.set_cap(Cap("0.003", scope="app", per="day", tz="Europe/Berlin", owner="a person"))
        print("raised; declined again:", call_until_declined(client, most=3) is not None)
        show(ledger)


if __name__ == "__main__":
    main()
