"""Prompts: the most input tokens that the content of a request can be, by its bytes.

No tokenizer of this family makes more tokens than there are bytes of text, so the bytes of the
request as JSON, with room for what the provider adds, are an upper bound that needs no tokenizer
and no network. Images, PDFs and whatever the provider fetches are not text: they are found here and
told apart.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from budgets.errors import InvalidInput, Unbounded

from .fields import NESTING_BLOCKS, TEXT_BLOCKS

#: What the provider may add to any prompt: markers of turns, notes on effort and thinking.
BASE_PROMPT = 256
#: What it adds for a structured answer, beside the schema, and for citations.
FORMAT_PROMPT = 1_024
CITATIONS_PROMPT = 1_024
#: With citations a document is cut into sentences, each with a mark of its own.
_SENTENCE_MARK = 16
_SENTENCE_ENDS = (".", "!", "?", "\\n", "。", "！", "？", ";")

# The separators are those of plain ``json.dumps``: the provider's own rendering of schemas may have
# the spaces, and compact JSON would then be too short.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, separators=(", ", ": ")).encode


@dataclass(slots=True)
class Content:
    """What the blocks of a request are.

    Attributes:
        images, documents: pictures and PDFs given as bytes.
        payload: length of their base64, which is no text.
        uncounted: something whose bytes do not bound its tokens (the token counter can).
        remote: something that the provider fetches, which can change after it was counted.
        inline_tools: tool definitions given in the middle of the conversation.
        uploads: files for a container.
    """

    images: int = 0
    documents: int = 0
    payload: int = 0
    uncounted: bool = False
    remote: bool = False
    uploads: bool = False
    inline_tools: list[Any] = field(default_factory=list)

    def walk(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            if isinstance(block, str):
                continue
            kind = block.get("type") if isinstance(block, Mapping) else None
            if not isinstance(kind, str):
                self.uncounted = True
                continue
            if kind in TEXT_BLOCKS:
                continue
            if kind in NESTING_BLOCKS:
                self._inside(block.get("content"))
            elif kind in {"image", "document"}:
                self._source(kind, block.get("source"))
            elif kind == "tool_addition":
                self._tool_addition(block.get("tool"))
            elif kind == "compaction":
                self._inside(block.get("tool_changes"))
            elif kind == "container_upload":
                self.uploads = self.remote = True
            else:
                self.uncounted = True

    def _inside(self, content: object) -> None:
        if isinstance(content, Mapping):
            self.walk((content,))
        elif isinstance(content, (list, tuple)):
            self.walk(content)

    def _source(self, kind: str, source: object) -> None:
        if not isinstance(source, Mapping):
            self.uncounted = True
            return
        given = source.get("type")
        if given == "text":
            return
        if given == "content":
            self._inside(source.get("content"))
        elif given == "base64":
            data = source.get("data")
            self.payload += len(data) if isinstance(data, str) else 0
            self.uncounted = True
            if kind == "image":
                self.images += 1
            else:
                self.documents += 1
        elif given in ("url", "file"):
            self.remote = True
        else:
            self.uncounted = True

    def _tool_addition(self, tool: object) -> None:
        if isinstance(tool, Mapping) and tool.get("type") == "tool_definition":
            self.inline_tools.append(tool.get("definition"))


def read_content(body: Mapping[str, Any]) -> Content:
    """Look at every content block of a request.

    Raises:
        InvalidInput: messages that are not a list of objects. Nothing was sent.
    """
    content = Content()
    messages = body.get("messages")
    if not isinstance(messages, (list, tuple)):
        msg = f"messages: {type(messages).__name__} is not a list of messages"
        raise InvalidInput(msg)
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            msg = f"messages[{index}]: {type(message).__name__} is not a message"
            raise InvalidInput(msg)
        blocks = message.get("content")
        if isinstance(blocks, (list, tuple)):
            content.walk(blocks)
    system = body.get("system")
    if isinstance(system, (list, tuple)):
        content.walk(system)
    return content


def encode(body: Mapping[str, Any]) -> str:
    """The request as JSON text.

    Raises:
        InvalidInput: something in it is not JSON. Nothing was sent.
    """
    try:
        return _encode(body if type(body) is dict else dict(body))
    except (TypeError, ValueError, RecursionError) as fault:
        msg = f"request body: not JSON, so its size is not known ({fault})"
        raise InvalidInput(msg) from None


def text_tokens(body: Mapping[str, Any], text: str) -> int:
    """The most tokens that ``body`` can be if all of it is text. ``text`` is the body as JSON."""
    plain = text.isascii()
    tokens = BASE_PROMPT + (len(text) if plain else _widest(text))
    schemas = _schemas(body)
    if not plain and (schemas or body.get("tools") or '"tool_use"' in text):
        # Definitions and tool inputs may be shown to the model with every other sign written out.
        tokens = max(tokens, BASE_PROMPT + len(_encode_ascii(dict(body))))
    for schema in schemas:
        # Once as grammar (in the text above) and once more as part of the prompt.
        tokens += FORMAT_PROMPT + len(_encode_ascii(schema))
    tokens += _references(body, text)
    if '"citations": {' in text:
        tokens += CITATIONS_PROMPT
        tokens += _SENTENCE_MARK * (1 + sum(text.count(end) for end in _SENTENCE_ENDS))
    return tokens


def _widest(text: str) -> int:
    """Bytes as UTF-8, or after NFKC if more: some tokenizers normalise (ﷺ becomes 33 bytes)."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if unicodedata.is_normalized("NFKC", text):
        return size
    return max(size, len(unicodedata.normalize("NFKC", text).encode("utf-8", "surrogatepass")))


def _schemas(body: Mapping[str, Any]) -> list[Any]:
    """Schemas of structured answers: the provider puts them into the prompt as well."""
    configs = [body.get("output_config")]
    fallbacks = body.get("fallbacks")
    if isinstance(fallbacks, (list, tuple)):
        configs += [hop.get("output_config") for hop in fallbacks if isinstance(hop, Mapping)]
    named = [config.get("format") for config in configs if isinstance(config, Mapping)]
    return [schema for schema in (*named, body.get("output_format")) if schema]


def _references(body: Mapping[str, Any], text: str) -> int:
    """A reference to a deferred tool shows that tool's definition once more, wherever it stands."""
    if '"tool_reference"' not in text:
        return 0
    references = text.count('"tool_reference"')
    tools = body.get("tools")
    longest = max((len(_encode_ascii(tool)) for tool in tools), default=0) if tools else 0
    # Definitions may also stand in the conversation itself; none is longer than all of it.
    inline = len(text) if '"tool_definition"' in text else 0
    return references * max(longest, inline)


def unbounded_upload() -> Unbounded:
    """The decline for a file that goes into a container."""
    msg = (
        "container_upload: a file for server-side code has no bound; "
        "pass Allowances(code_execution=Uses(uses=..., tokens=...))"
    )
    return Unbounded(msg, feature="container_upload")
