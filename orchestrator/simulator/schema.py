"""Filling a JSON schema from a document, the same way every time.

A string with an ``enum`` becomes the label whose words the document shares most. A label's words
are those of its name and those that a rubric ties to it: lines such as ``label: description`` in
the system prompt or in the text itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

MAX_DEPTH = 8
_WORD = re.compile(r"[^\W_]{3,}")
_BOUND = re.compile(r"(minimum|maximum): (-?\d+(?:\.\d+)?)")
_STOP_WORDS = frozenset(
    re.split(
        r"\s+",
        """the and for are was were with that this from have has had not but you your our his
        her its their they them all any can will would about into over than then when which who whom what
        where how why one two out use used using document documents text label labels""",
    )
)
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT1H",
    "email": "simulated@example.com",
    "hostname": "simulated.example.com",
    "uri": "https://simulated.example.com/",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def fill(schema: dict[str, Any], *, document: str, rubric: str = "") -> object:
    """A value that satisfies the schema.

    Args:
        schema: a JSON schema; ``$ref`` into itself is followed.
        document: the text to answer about.
        rubric: text that may explain labels, line by line.
    """
    return _Filler(schema, document, rubric).value(schema, "", 0)


def words(text: str) -> frozenset[str]:
    """The words of a text that say something, in lower case and without a plural's s."""
    found = _WORD.findall(text.lower())
    return frozenset(_singular(word) for word in found if word not in _STOP_WORDS)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=256)
def _label_words(labels: tuple[str, ...], rubric: str) -> tuple[frozenset[str], ...]:
    described: dict[str, list[str]] = {label: [label.replace("_", " ")] for label in labels}
    by_name = {label.lower(): label for label in labels}
    for line in rubric.splitlines():
        name, colon, description = line.partition(":")
        if not colon:
            name, colon, description = line.partition(" - ")
        label = by_name.get(name.strip(" \t-*•#`'\"0123456789.()").lower())
        if colon and label is not None:
            described[label].append(description)
    return tuple(words(" ".join(described[label])) for label in labels)


def pick_label(labels: list[str], *, document: str, rubric: str = "") -> str:
    """The label whose words the document shares most; of equals, the first."""
    seen = words(document)
    vocabularies = _label_words(tuple(labels), rubric)
    scores = [len(vocabulary & seen) for vocabulary in vocabularies]
    return labels[scores.index(max(scores))]


class _Filler:
    def __init__(self, root: dict[str, Any], document: str, rubric: str) -> None:
        self._root = root
        self._document = document
        self._rubric = rubric

    def value(self, schema: Any, name: str, depth: int) -> object:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._from_enum(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self.value(self._variant(schema[key], depth), name, depth + 1)
        if schema.get("allOf"):
            merged: dict[str, Any] = {}
            for part in schema["allOf"]:
                merged = {**merged, **self._resolved(part)}
            return self.value(merged, name, depth + 1)
        kind = schema.get("type") or ("object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        return self._of_type(str(kind), schema, name, depth)

    def _of_type(self, kind: str, schema: dict[str, Any], name: str, depth: int) -> object:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind == "boolean":
            about = words(f"{name.replace('_', ' ')} {schema.get('description', '')}")
            return bool(about & words(self._document))
        if kind in {"integer", "number"}:
            return _number(kind, schema)
        if kind == "null":
            return None
        return self._string(schema)

    def _resolved(self, schema: Any) -> dict[str, Any]:
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return {}
            ref = schema.get("$ref")
            if not isinstance(ref, str) or not ref.startswith("#"):
                return schema
            target: Any = self._root
            for step in ref.lstrip("#/").split("/") if ref != "#" else []:
                target = target.get(step, {}) if isinstance(target, dict) else {}
            schema = target
        return {}

    def _from_enum(self, values: list[object]) -> object:
        labels = [value for value in values if isinstance(value, str)]
        if len(labels) < len(values):
            return values[0]
        return pick_label(labels, document=self._document, rubric=self._rubric)

    def _variant(self, variants: list[Any], depth: int) -> object:
        resolved = [self._resolved(variant) for variant in variants]
        nulls = [variant for variant in resolved if variant.get("type") == "null"]
        if depth >= MAX_DEPTH and nulls:
            return nulls[0]
        return next((variant for variant in resolved if variant.get("type") != "null"), resolved[0])

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, object]:
        properties = schema.get("properties") or {}
        if depth >= MAX_DEPTH:
            required = schema.get("required") or []
            properties = {name: properties[name] for name in required if name in properties}
            if depth >= 2 * MAX_DEPTH:
                return {}
        return {name: self.value(part, name, depth + 1) for name, part in properties.items()}

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> list[object]:
        count = max(int(schema.get("minItems") or 0), 0 if depth >= MAX_DEPTH else 1)
        count = min(count, int(schema.get("maxItems", count)))
        items = schema.get("items") or {"type": "string"}
        return [self.value(items, name, depth + 1) for _ in range(count)]

    def _string(self, schema: dict[str, Any]) -> str:
        known = _FORMATS.get(str(schema.get("format")))
        if known is not None:
            return known
        text = f"Simulated: {summary(self._document)}"
        text = text.ljust(int(schema.get("minLength") or 0), ".")
        return text[: int(schema.get("maxLength") or len(text))]


def summary(document: str, *, count: int = 12) -> str:
    """The first words of a document."""
    # Twenty characters a word are plenty: there's no need to split a whole book.
    found = document[: count * 20].split()
    return " ".join(found[:count]) + (" ..." if len(found) > count else "")


def _number(kind: str, schema: dict[str, Any]) -> int | float:
    # The SDK moves bounds that the API doesn't know into the description.
    bounds = dict(_BOUND.findall(str(schema.get("description", ""))))
    low = schema.get("minimum", bounds.get("minimum"))
    high = schema.get("maximum", bounds.get("maximum"))
    if kind == "integer":
        whole = 1 if low is None else int(float(low))
        return whole if high is None else min(whole, int(float(high)))
    value = 0.5 if low is None else max(0.5, float(low))
    return value if high is None else min(value, float(high))
