"""Spans: the SDK's own OpenTelemetry spans say what a call cost, in which scope and how its hold ended."""

from __future__ import annotations

import logging
from typing import Any

from budgets.money import to_decimal

logger = logging.getLogger("earmark")

#: The instrumentation scope of the SDK's spans; a span of the caller's own is left alone.
_SDK = "com.anthropic.sdk.python"


def mark_span(span: Any, *, scope: str, outcome: str, nanos: int) -> None:
    """Put scope, outcome and charge on a span. Never raises.

    Args:
        span: the current one when the call was made.
        scope: where the charge is reported.
        outcome: how the hold ended: ``settle``, ``void`` or ``doubt``.
        nanos: what counts against the caps now, in nano-dollars.
    """
    try:
        if not span.is_recording():
            return
        made_by = getattr(span, "instrumentation_scope", None)
        if made_by is not None and made_by.name != _SDK:
            return
        span.set_attribute("earmark.scope", scope)
        span.set_attribute("earmark.outcome", outcome)
        span.set_attribute("earmark.cost_nanos", nanos)
        span.set_attribute("earmark.cost_usd", f"{to_decimal(nanos):f}")
    except Exception:
        logger.debug("a span could not be marked", exc_info=True)
