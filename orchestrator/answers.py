"""Answers: structured output asked for, read and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from anthropic import transform_schema
from anthropic.types import Message
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel, ValidationError

from .errors import ConfigError
from .outcomes import Outcome

#: Stop reasons of an answer that is whole.
_WHOLE = frozenset({"end_turn", "stop_sequence"})
#: What a block must have as text, beside its type, so that it can be worked with.
_TEXTS = {"text": ("text",), "tool_use": ("id", "name")}


def fault_of(reply: Message) -> str:
    """What keeps a successful answer from being read as a message, as the end of a sentence; empty if nothing does.

    Blocks of kinds that are not known here are no fault: they go back as they came.
    """
    content: object = reply.content
    if not isinstance(content, list):
        return "it has no list of content blocks"
    for number, block in enumerate(content, 1):
        kind = getattr(block, "type", None)
        if not isinstance(block, BaseModel) or not isinstance(kind, str):
            return f"content block {number} is no block"
        for name in _TEXTS.get(kind, ()):
            if not isinstance(getattr(block, name, None), str):
                return f"content block {number} ({kind}) has no {name}"
    return ""


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
        self._schema: Mapping[str, Any] | None = None
        self._validator: Draft202012Validator | None = None
        if isinstance(output, Mapping):
            try:
                Draft202012Validator.check_schema(output)
            except SchemaError as error:
                raise ConfigError(f"output: not a JSON schema ({error.message})") from None
            self._schema = output
            self._validator = Draft202012Validator(output)
        #: The ``output_config.format`` of a request, None for free text.
        self.format: dict[str, Any] | None = None
        if output is not None:
            schema = (
                transform_schema(self._model)
                if self._model is not None
                else dict(self._schema or {})
            )
            self.format = {"type": "json_schema", "schema": schema}

    def end(self, stop_reason: str | None, text: str, max_tokens: int) -> tuple[Outcome, str, Any]:
        """How a reply that is not followed by another one ends: outcome, reason in a sentence, and value.

        The stop reason is looked at first: a cut answer or a refusal is never read as one.

        Args:
            stop_reason: the reply's.
            text: its text.
            max_tokens: what it was limited to, for the reason.
        """
        if stop_reason == "refusal":
            return Outcome.REFUSAL, "the model refused", None
        if stop_reason in {"max_tokens", "model_context_window_exceeded"}:
            reason = f"the answer was cut ({stop_reason}; max_tokens is {max_tokens})"
            return Outcome.TRUNCATED, reason, None
        if stop_reason in {"tool_use", "pause_turn", "compaction"}:
            return Outcome.STALLED, f"the answer was not finished ({stop_reason})", None
        if stop_reason not in _WHOLE:
            told = (
                f"for a reason that is not known here ({stop_reason!r:.80})" if stop_reason else ""
            )
            reason = (
                f"the answer ended {told or 'without saying why'}, so it is not taken for whole"
            )
            return Outcome.INVALID, reason, None
        value, problem = self.read(text)
        return (Outcome.INVALID, problem, None) if problem else (Outcome.OK, "", value)

    def read(self, text: str) -> tuple[Any, str]:
        """An answer as its value, and what is wrong with it (empty if nothing is)."""
        value: Any = text
        try:
            if self._model is not None:
                value = self._model.model_validate_json(text)
            elif self._schema is not None:
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
