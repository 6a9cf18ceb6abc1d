"""Answers: structured output asked for, read and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from anthropic import transform_schema
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel, ValidationError

from .errors import ConfigError
from .outcomes import Outcome

#: Stop reasons of an answer that is whole.
_WHOLE = frozenset({"end_turn", "stop_sequence"})
#: Of one that was cut, and of one that somebody has to go on with.
_CUT = frozenset({"max_tokens", "model_context_window_exceeded"})
_UNFINISHED = frozenset({"tool_use", "pause_turn", "compaction"})


def ended_by(stop_reason: str | None, max_tokens: int | None = None) -> tuple[Outcome, str]:
    """How a reply that is not followed by another one ended, by its stop reason: the outcome, and why not ``ok``.

    The one place that says so, for direct calls and for batches. Only what is known to be whole is ``ok``: a
    reason that is not known here, or none, is ``invalid``.

    Args:
        stop_reason: the reply's.
        max_tokens: what it was limited to, for the reason; None if that is not known.
    """
    if stop_reason in _WHOLE:
        return Outcome.OK, ""
    if stop_reason == "refusal":
        return Outcome.REFUSAL, "the model refused"
    if stop_reason in _CUT:
        limit = "" if max_tokens is None else f"; max_tokens is {max_tokens}"
        return Outcome.TRUNCATED, f"the answer was cut ({stop_reason}{limit})"
    if stop_reason in _UNFINISHED:
        return Outcome.STALLED, f"the answer was not finished ({stop_reason})"
    told = (
        f"for a reason that is not known here ({stop_reason!r:.80})"
        if stop_reason
        else "without saying why"
    )
    return Outcome.INVALID, f"the answer ended {told}, so it is not taken for whole"


def item_ended_by(message: Mapping[str, Any]) -> tuple[Outcome, str]:
    """The same for the answer (a Message as JSON) to an item of a batch, which nobody here goes on with.

    A tool that it calls is an end, therefore: whoever sent the item asked for that.
    """
    reason, blocks = message.get("stop_reason"), message.get("content")
    content = blocks if isinstance(blocks, list) else []
    calls = [one for one in content if isinstance(one, Mapping) and one.get("type") == "tool_use"]
    if reason == "tool_use" and calls:
        return Outcome.OK, ""
    return ended_by(None if reason is None else str(reason))


# Patterns make agents anew from others, each time they are used: what an output comes to is kept for a while.
@lru_cache(maxsize=256)
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """A model as the API takes it."""
    return transform_schema(model)


@lru_cache(maxsize=256)
def _validator_of(schema: str) -> Draft202012Validator:
    """What checks values against a schema, given as JSON.

    Raises:
        SchemaError: it is none.
    """
    given = json.loads(schema)
    Draft202012Validator.check_schema(given)
    return Draft202012Validator(given)


class Answers:
    """How the answers of an agent must look.

    Args:
        output: a pydantic model or a JSON schema; None takes any text.
        check: returns what is wrong with a parsed answer, None if nothing is.

    Raises:
        ConfigError: not a schema.
    """

    def __init__(
        self,
        output: type[BaseModel] | Mapping[str, Any] | None,
        check: Callable[[Any], str | None] | None,
    ) -> None:
        self._model = output if isinstance(output, type) else None
        self._check = check
        self._validator: Draft202012Validator | None = None
        #: The ``output_config.format`` of a request, None for free text.
        self.format: dict[str, Any] | None = None
        if isinstance(output, Mapping):
            try:
                self._validator = _validator_of(json.dumps(dict(output)))
            except SchemaError as error:
                raise ConfigError(f"output: not a JSON schema ({error.message})") from None
            except (TypeError, ValueError) as error:
                raise ConfigError(f"output: not a JSON schema ({error})") from None
            self.format = {"type": "json_schema", "schema": dict(output)}
        elif self._model is not None:
            self.format = {"type": "json_schema", "schema": _schema_of(self._model)}

    def end(self, stop_reason: str | None, text: str, max_tokens: int) -> tuple[Outcome, str, Any]:
        """How a reply that is not followed by another one ends: outcome, reason in a sentence, and value.

        The stop reason is looked at first: a cut answer or a refusal is never read as one.

        Args:
            stop_reason: the reply's.
            text: its text.
            max_tokens: what it was limited to, for the reason.
        """
        outcome, reason = ended_by(stop_reason, max_tokens)
        if outcome is not Outcome.OK:
            return outcome, reason, None
        value, problem = self.read(text)
        return (Outcome.INVALID, problem, None) if problem else (Outcome.OK, "", value)

    def read(self, text: str) -> tuple[Any, str]:
        """An answer as its value, and what is wrong with it (empty if nothing is)."""
        value: Any = text
        try:
            if self._model is not None:
                value = self._model.model_validate_json(text)
            elif self._validator is not None:
                value = json.loads(text)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                return None, "the answer is not JSON"
            where = ".".join(map(str, first["loc"]))
            told = f"{where}: {first['msg']}" if where else first["msg"]
            return None, f"the answer does not fit its schema: {told[:200]}"
        except (ValueError, RecursionError):
            return None, "the answer is not JSON"
        if self._validator is not None:
            fault = best_match(self._validator.iter_errors(value))
            if fault is not None:
                return None, f"the answer does not fit its schema: {fault.message[:200]}"
        problem = self._check(value) if self._check is not None else None
        return value, problem or ""
