"""Money is an integer number of nano-dollars; this file reads and writes amounts.

Prices (dollars per token) live in ``prices``; nothing here multiplies.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from .errors import InvalidAmount

NANOS_PER_DOLLAR = 1_000_000_000
#: SQLite integers are signed 64-bit: about 9.2 billion dollars is the most that an amount can be.
MAX_NANOS = 2**63 - 1

_AMOUNT = re.compile(r"\$?\s*(\d{1,3}(?:,\d{3})+|\d+)?(\.\d+)?")


def parse_usd(amount: object, *, what: str = "amount") -> int:
    """Read an amount of dollars as nano-dollars, exactly.

    Args:
        amount: ``"5"``, ``"$5.00"``, ``"1,000.50"``, a Decimal, or an int of whole dollars.
        what: names the value in the error.

    Returns:
        Nano-dollars, zero or more.

    Raises:
        InvalidAmount: a float (binary fractions are not money), a negative, more than nine decimals,
            more than about $9.2 billion, or not a number.
    """
    if isinstance(amount, bool) or amount is None:
        raise InvalidAmount(
            f"{what}: {amount!r} is not an amount; write dollars as a string such as '5.00'"
        )
    if isinstance(amount, float):
        msg = (
            f"{what}: {amount!r} is a float, and floats can't hold money exactly; "
            f"write it as a string or Decimal, such as '{amount}'"
        )
        raise InvalidAmount(msg)
    if isinstance(amount, int):
        value = Decimal(amount)
    elif isinstance(amount, Decimal):
        value = amount
    elif isinstance(amount, str):
        value = _read(amount, what)
    else:
        raise InvalidAmount(
            f"{what}: a {type(amount).__name__} is not an amount; write dollars as a string such as '5.00'"
        )
    return _to_nanos(value, amount, what)


def _read(text: str, what: str) -> Decimal:
    stripped = text.strip()
    match = _AMOUNT.fullmatch(stripped)
    if match is None or not (match[1] or match[2]):
        raise InvalidAmount(
            f"{what}: {text!r} is not an amount of dollars; write it such as '5', '$5.00' or '0.25'"
        )
    try:
        return Decimal((match[1] or "0").replace(",", "") + (match[2] or ""))
    except InvalidOperation:  # pragma: no cover - the pattern admits nothing that Decimal does not
        raise InvalidAmount(f"{what}: {text!r} is not an amount of dollars") from None


def _to_nanos(value: Decimal, original: object, what: str) -> int:
    if not value.is_finite():
        raise InvalidAmount(f"{what}: {original!r} is not an amount of dollars")
    if value < 0:
        raise InvalidAmount(f"{what}: {original!r} is negative; an amount is zero or more")
    if value > MAX_NANOS // NANOS_PER_DOLLAR:
        raise InvalidAmount(
            f"{what}: {original!r} is more than a ledger can hold (about $9.2 billion)"
        )
    nanos = value.scaleb(9)
    if nanos != nanos.to_integral_value():
        raise InvalidAmount(f"{what}: {original!r} is finer than a nano-dollar (nine decimals)")
    return int(nanos)


def to_decimal(nanos: int) -> Decimal:
    """Nano-dollars as Decimal dollars, exactly; trailing zeros beyond cents are dropped."""
    value = Decimal(nanos).scaleb(-9).normalize()
    return value if value.as_tuple().exponent < -2 else value.quantize(Decimal("0.01"))  # type: ignore[operator]


def format_usd(nanos: int, *, places: int | None = None) -> str:
    """Nano-dollars as text such as ``$1.50`` or ``$0.000125``.

    Args:
        nanos: the amount; may be negative (a correction).
        places: round half up to this many decimals, for display only; None prints every digit.
    """
    value = to_decimal(abs(nanos))
    if places is not None:
        value = (
            Decimal(abs(nanos))
            .scaleb(-9)
            .quantize(Decimal(1).scaleb(-places), rounding="ROUND_HALF_UP")
        )
    return f"{'-' if nanos < 0 else ''}${value:,f}"
