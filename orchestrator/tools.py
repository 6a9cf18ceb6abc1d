"""Tools: plain Python functions as Claude sees them, with a schema from their signature."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json as _to_json

from .errors import ConfigError

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that Claude may call.

    Attributes:
        name, description: as Claude sees them.
        schema: JSON schema of the arguments.
        function: called with the arguments; sync (run in a thread) or async.
        arguments: checks and converts what Claude sends.
    """

    name: str
    description: str
    schema: dict[str, Any]
    function: Callable[..., Any]
    arguments: type[BaseModel]

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as it stands in a request."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    async def call(self, given: object) -> str:
        """Call it; its result as text (JSON for anything but a string).

        Raises:
            ValueError: arguments that don't fit, in one sentence.
            Whatever the function raises.
        """
        try:
            checked = self.arguments.model_validate(given)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise ValueError(f"the arguments of {self.name} don't fit: {problems}") from None
        fields = type(checked).model_fields
        values = {field.alias or name: getattr(checked, name) for name, field in fields.items()}
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**values)
        else:
            result = await asyncio.to_thread(self.function, **values)
            if inspect.isawaitable(result):  # a callable object, or a lambda around a coroutine
                result = await result
        return (
            result
            if isinstance(result, str)
            else _to_json(result, fallback=str).decode(errors="replace")
        )


def tool(function: Callable[..., Any] | Tool) -> Tool:
    """A tool from a function: its name, its docstring, and a schema from its annotations.

    Raises:
        ConfigError: a parameter without a type, ``*args`` or ``**kwargs``, no docstring, or a bad name.
    """
    if isinstance(function, Tool):
        return function
    name = getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"tool: {name or function!r} is not a usable name; write a named function"
        )
    description = inspect.getdoc(function)
    if not description:
        raise ConfigError(
            f"tool {name}: it has no docstring; Claude needs one to know when to use it"
        )
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(_parameters(name, function)):
        if parameter.kind in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        }:
            raise ConfigError(
                f"tool {name}: parameter {parameter.name} can't be passed by name; write plain ones"
            )
        if parameter.annotation is parameter.empty:
            raise ConfigError(f"tool {name}: parameter {parameter.name} has no type; annotate it")
        default = ... if parameter.default is parameter.empty else parameter.default
        # By number, since a model's own attributes (copy, json, schema, ...) are names in use.
        shown = Field(default, alias=parameter.name, title=parameter.name)
        fields[f"argument_{number}"] = (parameter.annotation, shown)
    arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    for shown in schema.get("properties", {}).values():
        shown.pop("title", None)
    return Tool(
        name=name, description=description, schema=schema, function=function, arguments=arguments
    )


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name}: its signature can't be read ({error})") from None
