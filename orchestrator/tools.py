"""Tools: plain Python functions as Claude sees them, with a schema from their signature."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json as _to_json

from .errors import ConfigError
from .questions import in_thread

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: Characters of a result, some 25,000 tokens: it is paid for in every further turn of the loop.
RESULT_CHARS = 100_000

#: What a tool hands to the model: text, or content blocks (text, images, documents).
Result = str | list[dict[str, Any]]


class BadCall(ValueError):
    """Raised by a tool whose caller can mend the call: the model is told, and no breaker counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that Claude may call.

    Attributes:
        name, description: as Claude sees them.
        schema: JSON schema of the arguments.
        function: called with the arguments; sync (run in a thread) or async. A list of dicts with a ``type``
            is taken as content blocks, anything else that is no string goes out as JSON.
        arguments: checks and converts what Claude sends; None passes it on as it is.
        needs_approval: a person or a policy is asked before each call; see ``approvals``.
        timeout_s: seconds for one call; None is no limit. The thread of a sync function can't be stopped, it
            is only not waited for any longer.
        result_chars: characters of a result at most; what is longer is cut, with a mark.
    """

    name: str
    description: str
    schema: dict[str, Any]
    function: Callable[..., Any]
    arguments: type[BaseModel] | None
    needs_approval: bool = False
    timeout_s: float | None = None
    result_chars: int = RESULT_CHARS

    def __post_init__(self) -> None:
        if self.result_chars < 1 or (self.timeout_s is not None and self.timeout_s <= 0):
            raise ConfigError(
                f"tool {self.name}: timeout_s and result_chars must be more than 0 (timeout_s None is no limit)"
            )

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as it stands in a request."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    def __call__(self, *args: Any, **given: Any) -> Any:
        """The function itself, for a tool made by a decorator."""
        return self.function(*args, **given)

    def read(self, given: object) -> dict[str, Any]:
        """What Claude sent, as the arguments of the function.

        Raises:
            BadCall: they don't fit, in one sentence.
        """
        if self.arguments is None:
            if not isinstance(given, Mapping):
                raise BadCall(f"the arguments of {self.name} don't fit: they are not an object")
            return dict(given)
        try:
            checked = self.arguments.model_validate(given)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise BadCall(f"the arguments of {self.name} don't fit: {problems}") from None
        fields = type(checked).model_fields
        return {field.alias or name: getattr(checked, name) for name, field in fields.items()}

    async def invoke(self, arguments: Mapping[str, Any]) -> Result:
        """Call the function; its result as it goes to Claude, cut to ``result_chars``.

        Raises:
            TimeoutError: it took longer than ``timeout_s``.
            Whatever the function raises.
        """
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                if inspect.iscoroutinefunction(self.function):
                    result = await self.function(**arguments)
                else:
                    result = await in_thread(self.function, **arguments)
                    if inspect.isawaitable(
                        result
                    ):  # a callable object, or a lambda around a coroutine
                        result = await result
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"{self.name} did not end in {self.timeout_s:g} s") from None
            raise
        if _is_blocks(result):
            return _cut_blocks(result, self.result_chars)
        text = result if isinstance(result, str) else _json(result)
        return cut(text, self.result_chars)

    async def call(self, given: object) -> Result:
        """``read`` and ``invoke``."""
        return await self.invoke(self.read(given))


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a mark that says what is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[cut: {most:,} of {len(text):,} characters are shown; ask for less at a time]"


def sendable(result: Result) -> Result:
    """A result without lone surrogates (of a file's odd name, say), which no request can carry."""
    if isinstance(result, str):
        return result.encode(errors="replace").decode()
    return [
        {**one, "text": str(sendable(str(one.get("text", ""))))} if one["type"] == "text" else one
        for one in result
    ]


def _is_blocks(result: object) -> bool:
    return (
        isinstance(result, list)
        and bool(result)
        and all(isinstance(one, Mapping) and one.get("type") in _BLOCKS for one in result)
    )


#: Blocks that a ``tool_result`` may hold.
_BLOCKS = frozenset({"text", "image", "document", "search_result"})


def _cut_blocks(blocks: list[Any], most: int) -> list[dict[str, Any]]:
    """Text blocks share the limit; images and documents have limits of their own at the API."""
    kept, left = [], most
    for block in blocks:
        if block["type"] != "text":
            kept.append(dict(block))
            continue
        text = str(block.get("text", ""))
        if left > 0:
            kept.append({**block, "text": cut(text, left)})
        left -= len(text)
    return kept


def _json(value: object) -> str:
    return _to_json(value, fallback=str).decode(errors="replace")


@overload
def tool(
    function: Callable[..., Any] | Tool,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | None = None,
    timeout_s: float | None = None,
    result_chars: int | None = None,
) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | None = None,
    timeout_s: float | None = None,
    result_chars: int | None = None,
) -> Callable[[Callable[..., Any] | Tool], Tool]: ...


def tool(
    function: Callable[..., Any] | Tool | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool | None = None,
    timeout_s: float | None = None,
    result_chars: int | None = None,
) -> Tool | Callable[[Callable[..., Any] | Tool], Tool]:
    """A tool from a function: its name, its docstring, and a schema from its annotations.

    Works as ``tool(function, needs_approval=True)`` and as a decorator, ``@tool`` or
    ``@tool(needs_approval=True)``.

    Args:
        function: a function, or a tool of which a changed copy is made.
        name, description: in place of the function's own.
        needs_approval, timeout_s, result_chars: see ``Tool``; None leaves them as they are.

    Raises:
        ConfigError: a parameter without a type, ``*args`` or ``**kwargs``, no docstring, or a bad name.
    """
    said = {
        "name": name,
        "description": description,
        "needs_approval": needs_approval,
        "timeout_s": timeout_s,
        "result_chars": result_chars,
    }
    changes: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
    if function is None:
        return lambda one: tool(one, **changes)
    if isinstance(function, Tool):
        return replace(function, **changes) if changes else function
    return _from_function(function, changes)


def _from_function(function: Callable[..., Any], changes: dict[str, Any]) -> Tool:
    name = changes.pop("name", None) or getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"tool: {name or function!r} is not a usable name; write a named function"
        )
    description = changes.pop("description", None) or inspect.getdoc(function)
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
        name=name,
        description=description,
        schema=schema,
        function=function,
        arguments=arguments,
        **changes,
    )


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name}: its signature can't be read ({error})") from None
