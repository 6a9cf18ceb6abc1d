"""Reading and checking the body of a Messages request, as strictly as matters for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .api_errors import ApiError
from .catalog import ModelSpec, find
from .directives import NONE, Directives, read_directives

NO_SAMPLING_VERSION = "2026-10-21"
_SAMPLING = ("temperature", "top_p", "top_k")
_ROLES = ("user", "assistant", "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """A checked request. Fields that the simulator ignores are accepted and dropped.

    Attributes:
        spec, model: the model, and its name as the request gives it.
        messages, system, tools: the prompt, as sent; of a thread, the whole conversation.
        schema: the JSON schema of ``output_config.format``, if any.
        text: the latest user text.
        results: user messages with tool results since that text.
        us: whether inference happens (and is billed) in the US.
        geo: what usage reports as ``inference_geo``.
    """

    spec: ModelSpec
    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_choice: dict[str, Any] | None
    max_tokens: int
    stream: bool
    stop_sequences: list[str]
    schema: dict[str, Any] | None
    thinking: dict[str, Any] | None
    effort: str | None
    cache_control: dict[str, Any] | None
    geo: str
    us: bool
    fast: bool
    text: str
    results: int
    directives: Directives


def read_json(raw: bytes) -> dict[str, Any]:
    """A request body as an object.

    Raises:
        ApiError: 400 if it isn't one.
    """
    try:
        body = json.loads(raw)
    except ValueError:
        raise ApiError(400, "The request body is not valid JSON") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object")
    return body


def read_request(
    body: dict[str, Any],
    *,
    version: str,
    header: str = "",
    default_geo: str = "global",
    counting: bool = False,
    batch: bool = False,
) -> MessageRequest:
    """Check a body and take from it what the simulator needs.

    Args:
        body: the request's JSON object.
        version: the ``anthropic-version`` header.
        header: the ``x-sim`` header: directives.
        default_geo: the simulated workspace's default place of inference.
        counting: a token count, which has no ``max_tokens``.
        batch: an item of a batch, which may not stream, be fast or continue a thread.

    Raises:
        ApiError: 400 or 404, in the API's words where they are known.
    """
    model = body.get("model")
    if model is None:
        raise ApiError(400, "model: Field required")
    spec = find(model)
    if spec is None:
        raise ApiError(404, f"model: {model}")
    _check_version(body, version)
    if batch:
        _check_batchable(body)
    messages = _messages(body)
    tools = _objects(body, "tools")
    text, results = _latest_text(messages)
    tool_choice = _object(body, "tool_choice")
    output_config = _object(body, "output_config") or {}
    thinking = _object(body, "thinking")
    _check_thinking(spec, thinking, tool_choice)
    _check_tool_choice(tool_choice, tools)
    geo = _geo(body, spec, default_geo)
    return MessageRequest(
        spec=spec,
        model=str(model),
        messages=messages,
        system=_system(body),
        tools=tools,
        tool_choice=tool_choice,
        max_tokens=0 if counting else _max_tokens(body, spec),
        stream=body.get("stream") is True,
        stop_sequences=[str(stop) for stop in body.get("stop_sequences") or []],
        schema=_schema(body, output_config),
        thinking=thinking,
        effort=output_config.get("effort"),
        cache_control=_object(body, "cache_control"),
        geo=geo,
        us=geo == "us",
        fast=_fast(body, spec),
        text=text,
        results=results,
        directives=_directives(text, header),
    )


def _directives(text: str, header: str) -> Directives:
    if "[[sim:" not in text and not header:
        return NONE
    return read_directives(text, header)


def _check_version(body: dict[str, Any], version: str) -> None:
    if not version:
        raise ApiError(400, "anthropic-version: header is required")
    if version < NO_SAMPLING_VERSION:
        return
    for field in _SAMPLING:
        if body.get(field) is not None:
            raise ApiError(
                400, f"{field}: this parameter is not supported with anthropic-version {version}"
            )


def _check_batchable(body: dict[str, Any]) -> None:
    for field in ("stream", "speed", "thread"):
        if body.get(field):
            raise ApiError(400, f"{field}: not supported in a batch")
    if body.get("max_tokens") == 0:
        raise ApiError(400, "max_tokens: 0 is not supported in a batch")


def _max_tokens(body: dict[str, Any], spec: ModelSpec) -> int:
    limit = body.get("max_tokens")
    if limit is None:
        raise ApiError(400, "max_tokens: Field required")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise ApiError(400, "max_tokens: Input should be a valid integer, zero or more")
    if limit > spec.max_output:
        raise ApiError(
            400,
            f"max_tokens: {limit} > {spec.max_output}, which is the maximum allowed number of "
            f"output tokens for {spec.id}",
        )
    if limit == 0 and (body.get("stream") or (body.get("output_config") or {}).get("format")):
        raise ApiError(400, "max_tokens: 0 can't be combined with stream or an output format")
    return limit


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise ApiError(400, "messages: Field required")
    if not messages:
        raise ApiError(400, "messages: at least one message is required")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ApiError(400, f"messages.{index}.role: Input should be 'user' or 'assistant'")
        content = message.get("content")
        if isinstance(content, list):
            _check_blocks(content, f"messages.{index}.content")
        elif not isinstance(content, str):
            raise ApiError(400, f"messages.{index}.content: Field required")
    return messages


def _check_blocks(blocks: list[Any], where: str) -> None:
    for index, block in enumerate(blocks):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise ApiError(400, f"{where}.{index}.type: Field required")
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise ApiError(400, f"{where}.{index}.text.text: Field required")


def _system(body: dict[str, Any]) -> str | list[dict[str, Any]]:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return system or ""
    if not isinstance(system, list):
        raise ApiError(400, "system: Input should be a string or a list of text blocks")
    _check_blocks(system, "system")
    return system


def _objects(body: dict[str, Any], field: str) -> list[dict[str, Any]]:
    values = body.get(field) or []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ApiError(400, f"{field}: Input should be a list of objects")
    return values


def _object(body: dict[str, Any], field: str) -> dict[str, Any] | None:
    value = body.get(field)
    if value is not None and not isinstance(value, dict):
        raise ApiError(400, f"{field}: Input should be an object")
    return value


def _schema(body: dict[str, Any], output_config: dict[str, Any]) -> dict[str, Any] | None:
    wanted = output_config.get("format") or body.get("output_format")
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise ApiError(400, "output_config.format.type: Input should be 'json_schema'")
    schema = wanted.get("schema")
    if not isinstance(schema, dict):
        raise ApiError(400, "output_config.format.schema: Field required")
    return schema


def _check_thinking(
    spec: ModelSpec, thinking: dict[str, Any] | None, tool_choice: dict[str, Any] | None
) -> None:
    kind = (thinking or {}).get("type")
    if kind == "enabled" and not spec.budgeted_thinking:
        raise ApiError(
            400, f"thinking.type: 'enabled' is not supported by {spec.id}; use 'adaptive'"
        )
    if not spec.always_thinks:
        return
    if kind == "disabled":
        raise ApiError(400, f"thinking.type: thinking can't be disabled for {spec.id}")
    if (tool_choice or {}).get("type") in {"any", "tool"}:
        raise ApiError(400, f"tool_choice: {spec.id} doesn't support a forced tool_choice")


def _check_tool_choice(choice: dict[str, Any] | None, tools: list[dict[str, Any]]) -> None:
    kind = (choice or {}).get("type")
    if choice is None or kind in {"auto", "none"}:
        return
    if kind not in {"any", "tool"}:
        raise ApiError(400, "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    if not tools:
        raise ApiError(400, "tool_choice: tools are required for a forced tool_choice")
    name = choice.get("name")
    if kind == "tool" and name not in {tool.get("name") for tool in tools}:
        raise ApiError(400, f"tool_choice: tool {name!r} not found in provided tools")


def _geo(body: dict[str, Any], spec: ModelSpec, default: str) -> str:
    geo = body.get("inference_geo")
    if geo is not None and geo not in {"us", "global"}:
        raise ApiError(400, "inference_geo: Input should be 'us' or 'global'")
    if not spec.geo:
        if geo is not None:
            raise ApiError(400, f"inference_geo: not supported by {spec.id}")
        return "not_available"
    return str(geo or default)


def _fast(body: dict[str, Any], spec: ModelSpec) -> bool:
    fast = body.get("speed") == "fast"
    if fast and not spec.fast:
        raise ApiError(400, f"speed: 'fast' is not supported by {spec.id}")
    return fast


def _latest_text(messages: list[dict[str, Any]]) -> tuple[str, int]:
    """The latest user text, and how many messages with tool results came after it."""
    results = 0
    for message in reversed(messages):
        if message["role"] != "user":
            continue
        content = message["content"]
        if isinstance(content, str):
            return content, results
        # The CLI adds reminders to prompts and to tool results; they aren't what was asked.
        text = "\n".join(
            part["text"]
            for part in content
            if part["type"] == "text" and not part["text"].startswith("<system-reminder>")
        )
        if text:
            return text, results
        if any(part["type"] == "tool_result" for part in content):
            results += 1
    return "", results
