"""Arguments: the check of numbers that a user writes, with one sentence for what can't be."""

from __future__ import annotations

from .errors import ConfigError


def check_whole(where: str, *, least: int = 1, **numbers: object) -> None:
    """Check that arguments are whole numbers, none of them below ``least``.

    Args:
        where: the pattern, or whatever else takes them, for the message.
        least: the smallest that can be.
        numbers: by the name of the argument.

    Raises:
        ConfigError: one is no whole number, or too small.
    """
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(
                f"{where}: {name} is {value!r:.80}; write a whole number, {least} or more"
            )
