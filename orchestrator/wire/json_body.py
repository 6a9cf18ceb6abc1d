"""JSON of the provider, as leniently as the SDK reads it: what it hands to the caller must be read here too."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def json_of(body: bytes) -> Any:
    """The value of a JSON text; lone surrogates stay as they are.

    Raises:
        ValueError: not JSON, or nested more deeply than anybody can read.
    """
    try:
        # Several times faster than the standard library's, and stricter.
        return from_json(body)
    except ValueError:
        pass
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
