"""The small deterministic model: what the simulated API answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .directives import strip_directives
from .request import MessageRequest
from .schema import fill, summary
from .tokens import json_tokens, text_tokens

#: Long answers repeat themselves; beyond this many characters only their count goes on.
MAX_FILLER = 8_000
_FILLER = " This text is simulated; it fills the length that the test asked for."
#: The Agent SDK asks for structured output by this tool.
STRUCTURED_OUTPUT = "StructuredOutput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model says and how much of it is counted.

    Attributes:
        content: content blocks as the API writes them.
        stop_reason, stop_sequence: how it ended.
        output_tokens: all output, thinking included.
        thinking_tokens: the part that was thinking.
        extra_input: input tokens that server tools added.
        web_searches: web searches done.
        billed: False for a refusal before any output.
    """

    content: list[dict[str, Any]]
    stop_reason: str
    output_tokens: int
    stop_sequence: str | None = None
    thinking_tokens: int = 0
    extra_input: int = 0
    web_searches: int = 0
    billed: bool = True


def answer(request: MessageRequest, *, number: int, prompt_tokens: int) -> Answer:
    """The model's answer to a request.

    Args:
        request: the checked request.
        number: makes ids of tool calls unique.
        prompt_tokens: the length of the prompt; prompt and answer must fit the context.
    """
    directives = request.directives
    if directives.refuse is not None:
        return Answer(
            content=[],
            stop_reason="refusal",
            output_tokens=min(directives.refuse, request.max_tokens),
            billed=directives.refuse > 0,
        )
    if request.max_tokens == 0:
        return Answer(content=[], stop_reason="max_tokens", output_tokens=0)
    content, stop_reason = _content(request, number)
    stop_sequence = _cut_at_stop(content, request.stop_sequences)
    if stop_sequence is not None:
        stop_reason = "stop_sequence"
    searches = _searches(request)
    if searches:
        content = _search_blocks(searches, number) + content
    thinking = directives.thinking
    if thinking:
        content = [_thinking_block(), *content]
    wanted = directives.output
    tokens = thinking + (wanted if wanted is not None else _natural_tokens(content))
    if directives.stop is not None:
        stop_reason = directives.stop
    room = min(request.max_tokens, max(1, request.spec.context - prompt_tokens))
    if tokens > room:
        in_context = room == request.max_tokens
        stop_reason = "max_tokens" if in_context else "model_context_window_exceeded"
        content = _cut_short(content, room - thinking, tokens - thinking)
        tokens, stop_sequence = room, None
    return Answer(
        content=content,
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        output_tokens=tokens,
        thinking_tokens=min(thinking, tokens),
        extra_input=searches * directives.search_tokens,
        web_searches=searches,
    )


def _content(request: MessageRequest, number: int) -> tuple[list[dict[str, Any]], str]:
    calls = _tool_calls(request)
    if calls:
        blocks = [
            {
                "type": "tool_use",
                "id": f"toolu_sim_{number:08d}_{index}",
                "name": tool["name"],
                "input": _tool_input(request, tool) if given is None else given,
            }
            for index, (tool, given) in enumerate(calls)
        ]
        return blocks, "tool_use"
    return [{"type": "text", "text": _text(request)}], "end_turn"


def _text(request: MessageRequest) -> str:
    directives = request.directives
    if directives.text is not None:
        return directives.text
    document = strip_directives(request.text)
    if request.schema is not None:
        filled = fill(request.schema, document=document, rubric=rubric_of(request))
        return json.dumps(filled, ensure_ascii=False)
    text = f"Simulated answer to: {summary(document)}" if document else "Simulated answer."
    if directives.output is None:
        return text
    wanted = min(directives.output * 4, MAX_FILLER)
    if len(text) < wanted:
        text += _FILLER * ((wanted - len(text)) // len(_FILLER) + 1)
    return text[:wanted] or "S"


def rubric_of(request: MessageRequest) -> str:
    """Where labels may be explained: the system prompt and what stands before the document."""
    system = request.system
    parts = [system] if isinstance(system, str) else [part.get("text", "") for part in system]
    for message in request.messages:
        content = message["content"]
        if message["role"] == "system" and isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list) and message["role"] != "assistant":
            parts.extend(part["text"] for part in content[:-1] if part["type"] == "text")
    return "\n".join(parts)


_Calls = list[tuple[dict[str, Any], dict[str, Any] | None]]


def _tool_calls(request: MessageRequest) -> _Calls:
    """The tools to call now, each with its input if the test gave one."""
    tools = {tool["name"]: tool for tool in request.tools if _is_callable(tool)}
    choice = request.tool_choice or {}
    if not tools or choice.get("type") == "none":
        return []
    directives = request.directives
    given: _Calls = [(tools[name], value) for name, value in directives.tools if name in tools]
    if request.results < max(directives.turns, 1 if given else 0):
        return given or [(next(iter(tools.values())), None)]
    if request.results == 0 and choice.get("type") in {"tool", "any"}:
        first = next(iter(tools))
        return [(tools.get(choice.get("name", first), tools[first]), None)]
    return _asked_in_words(request, tools) or _structured_output(request, tools)


def _asked_in_words(request: MessageRequest, tools: dict[str, dict[str, Any]]) -> _Calls:
    lowered = request.text.lower()
    if request.results or "use tool" not in lowered:
        return []
    asked = [tool for name, tool in tools.items() if f"use tool {name.lower()}" in lowered]
    return [(asked[0], None)] if asked else []


def _structured_output(request: MessageRequest, tools: dict[str, dict[str, Any]]) -> _Calls:
    """The Agent SDK's own tool is called at the end of the work, unless it was called before."""
    tool = tools.get(STRUCTURED_OUTPUT)
    if tool is None:
        return []
    last = request.messages[-1]["content"]
    called = [
        part
        for message in request.messages
        if message["role"] == "assistant" and isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "tool_use" and part.get("name") == STRUCTURED_OUTPUT
    ]
    ids = {part.get("id") for part in called}
    if isinstance(last, list) and any(part.get("tool_use_id") in ids for part in last):
        return []
    return [(tool, None)]


def _is_callable(tool: dict[str, Any]) -> bool:
    """A tool that the caller runs, with a schema; server tools have a dated type."""
    return isinstance(tool.get("name"), str) and tool.get("type", "custom") == "custom"


def _tool_input(request: MessageRequest, tool: dict[str, Any]) -> object:
    schema = tool.get("input_schema") or {}
    document = strip_directives(request.text)
    required = schema.get("required")
    if isinstance(required, list):
        properties = schema.get("properties") or {}
        wanted = {name: properties[name] for name in required if name in properties}
        schema = {**schema, "properties": wanted}
    filled = fill(schema, document=document, rubric=rubric_of(request))
    return filled if isinstance(filled, dict) else {}


def _natural_tokens(content: list[dict[str, Any]]) -> int:
    total = 2
    for block in content:
        if block["type"] == "text":
            total += text_tokens(block["text"])
        elif block["type"] == "tool_use":
            total += text_tokens(block["name"]) + json_tokens(block["input"])
    return total


def _cut_at_stop(content: list[dict[str, Any]], stops: list[str]) -> str | None:
    if not stops or content[-1]["type"] != "text":
        return None
    text = content[-1]["text"]
    found = [(text.find(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return None
    at, stop = min(found)
    content[-1] = {**content[-1], "text": text[:at]}
    return stop


def _cut_short(content: list[dict[str, Any]], room: int, wanted: int) -> list[dict[str, Any]]:
    """Keep of the answer the share that fits; a tool call that doesn't fit loses its input."""
    if room <= 0:
        return [block for block in content if block["type"] == "thinking"]
    kept = []
    for block in content:
        if block["type"] == "text":
            text = block["text"]
            kept.append({**block, "text": text[: len(text) * room // wanted]})
        elif block["type"] == "tool_use":
            kept.append({**block, "input": {}})
        else:
            kept.append(block)
    return kept


def _thinking_block() -> dict[str, Any]:
    return {"type": "thinking", "thinking": "Simulated thinking.", "signature": "simulated"}


def _searches(request: MessageRequest) -> int:
    if not request.directives.searches:
        return 0
    for tool in request.tools:
        if str(tool.get("type", "")).startswith("web_search"):
            limit = tool.get("max_uses")
            wanted = request.directives.searches
            return min(wanted, limit) if isinstance(limit, int) else wanted
    return 0


def _search_blocks(searches: int, number: int) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for index in range(searches):
        call = f"srvtoolu_sim_{number:08d}_{index}"
        query = {"query": "simulated search"}
        blocks.append({"type": "server_tool_use", "id": call, "name": "web_search", "input": query})
        result = {
            "type": "web_search_result",
            "title": "Simulated result",
            "url": "https://simulated.example.com/",
            "encrypted_content": "simulated",
            "page_age": None,
        }
        blocks.append({"type": "web_search_tool_result", "tool_use_id": call, "content": [result]})
    return blocks
