"""What the prompt cache saved: reads against plain input, less what writes cost above it.

Rates are those of the price book on the day of the call. A line of the ledger has the lifetimes of writes, the
tier, the place and the speed; a journal alone does not, and then writes are taken as 5-minute ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from budgets.errors import BudgetError
from budgets.prices import PriceBook

from .records import CacheUse, Tokens

_PICOS_PER_NANO = 1_000


class CacheCount:
    """Counts what the cache did, call by call.

    Args:
        book: where rates come from; None counts tokens only.
    """

    def __init__(self, book: PriceBook | None) -> None:
        self._book = book
        self._saved = 0
        self._surcharge = 0
        self._is_estimate = False
        self._is_known = book is not None

    def add(
        self, model: str, tokens: Tokens, at: datetime | None, usage: Mapping[str, Any] | None
    ) -> None:
        """Count one billed call; ``usage`` as the ledger's line has it, None if there is none."""
        if not (tokens.cache_read or tokens.cache_write) or self._book is None or at is None:
            return
        said = usage or {}
        parts = said.get("parts")
        if isinstance(parts, list) and parts:
            for part in parts:
                if isinstance(part, Mapping):
                    self._add_one(model, at, {**said, "parts": None, **part})
            return
        self._add_one(model, at, {**_fields(tokens), **said})

    def _add_one(self, model: str, at: datetime, usage: Mapping[str, Any]) -> None:
        read, written = _count(usage, "cache_read_tokens"), _count(usage, "cache_write_tokens")
        prompt = _count(usage, "input_tokens") + read + written
        assert self._book is not None
        try:
            rates = self._book.rates(
                str(usage.get("model") or model),
                at,
                tier="batch" if usage.get("tier") == "batch" else "standard",
                speed="fast" if usage.get("speed") == "fast" else "standard",
                prompt_tokens=prompt,
            )
        except BudgetError:
            self._is_known = False
            return
        hour = min(_count(usage, "cache_write_1h"), written)
        unsplit = max(written - hour - _count(usage, "cache_write_5m"), 0)
        if unsplit and usage.get("unsplit_ttl") == "1h":
            hour += unsplit
        elif unsplit and "unsplit_ttl" not in usage:
            self._is_estimate = True
        place = 11 if usage.get("geo") == "us" else 10
        self._saved += read * (rates.input - rates.read) * place
        extra = hour * (rates.write_1h - rates.input)
        extra += (written - hour) * (rates.write_5m - rates.input)
        self._surcharge += extra * place

    def use(self, tokens: Tokens) -> CacheUse:
        """What it came to; ``tokens`` are all of the run."""
        return CacheUse(
            tokens=tokens,
            saved_nanos=self._saved // (10 * _PICOS_PER_NANO) if self._is_known else None,
            surcharge_nanos=self._surcharge // (10 * _PICOS_PER_NANO) if self._is_known else None,
            is_estimate=self._is_estimate,
        )


def _fields(tokens: Tokens) -> dict[str, Any]:
    return {
        "input_tokens": tokens.input,
        "cache_write_tokens": tokens.cache_write,
        "cache_read_tokens": tokens.cache_read,
    }


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
