"""Sources: what the text of an answer cites, and what was found by its web tools, in the order of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where something in an answer comes from.

    Attributes:
        title, url: of the page or document; a document of the request has no address.
        cited_text: the passage that is cited; empty for a page that was found and not cited.
        claim: the text of the answer that cites it; empty likewise.
    """

    title: str
    url: str
    cited_text: str = ""
    claim: str = ""


def sources_of(content: Sequence[Mapping[str, Any]]) -> Iterator[Source]:
    """The sources of one answer, by its content blocks as they came."""
    for block in content:
        kind = block.get("type")
        if kind == "text":
            for citation in _records(block.get("citations")):
                yield Source(
                    title=_text(citation, "title") or _text(citation, "document_title"),
                    url=_text(citation, "url") or _text(citation, "source"),
                    cited_text=_text(citation, "cited_text"),
                    claim=_text(block, "text"),
                )
        elif kind == "web_search_tool_result":
            for one in _records(block.get("content")):
                yield Source(title=_text(one, "title"), url=_text(one, "url"))
        elif kind == "web_fetch_tool_result":
            page = block.get("content")
            if isinstance(page, Mapping) and page.get("url"):
                document = page.get("content")
                title = _text(document, "title") if isinstance(document, Mapping) else ""
                yield Source(title=title, url=_text(page, "url"))


def _records(value: object) -> list[Mapping[str, Any]]:
    """What of a list can be read; nothing of anything else."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""
