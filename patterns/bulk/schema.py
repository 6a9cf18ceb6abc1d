"""Schemas of answers: a JSON schema or a pydantic model, as it is sent, as it is checked, and as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anthropic import transform_schema
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel, ValidationError

from orchestrator.errors import ConfigError

_FIELDS_MAX = 2_000
#: What says nothing about answers.
_UNSAID = {"$schema", "$id", "$comment", "examples"}
_REASON_MAX = 200

_Path = tuple[str, ...]


class Schema:
    """The fields that answers have.

    Args:
        given: a JSON schema of an object with properties, or a pydantic model.

    Attributes:
        wire: what is sent: as the API takes it, limits that it does not know moved into descriptions.
        columns: leaf fields in the order of the schema, nested ones as ``outer.inner``.

    Raises:
        ConfigError: not a schema of an object, one that refers to itself or to elsewhere, or one that the API
            does not take.
    """

    def __init__(self, given: Mapping[str, Any] | type[BaseModel]) -> None:
        self._model = given if isinstance(given, type) else None
        plain = given.model_json_schema() if isinstance(given, type) else dict(given)
        self._plain = plain
        self._visits = 0
        try:
            Draft202012Validator.check_schema(plain)
            paths = self._leaves(plain, (), ())
            if () in paths:
                raise ConfigError(
                    'schema: it must describe an object with properties ({"type": "object", "properties": ...})'
                )
            self.wire: Mapping[str, Any] = transform_schema(_plainer(plain))
        except SchemaError as error:
            raise ConfigError(
                f"schema: not a JSON schema ({error.message[:_REASON_MAX]})"
            ) from None
        except RecursionError:
            raise ConfigError("schema: it is nested too deeply; flatten it") from None
        except ConfigError:
            raise
        except (ValueError, TypeError, AttributeError, AssertionError) as error:
            raise ConfigError(
                f"schema: the API does not take it ({str(error)[:_REASON_MAX] or 'an unknown type'})"
            ) from None
        self._paths = {_name(path, paths): path for path in paths}
        self.columns = tuple(self._paths)
        self._validator = Draft202012Validator(plain)

    def problem(self, value: Any) -> str | None:
        """What is wrong with an answer; None if nothing is."""
        if self._model is not None:
            try:
                self._model.model_validate(value)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                return f"{where}: {first['msg']}"[:_REASON_MAX] if where else str(first["msg"])
            return None
        fault = best_match(self._validator.iter_errors(value))
        if fault is None:
            return None
        where = ".".join(map(str, fault.absolute_path))
        return f"{where}: {fault.message}"[:_REASON_MAX] if where else fault.message[:_REASON_MAX]

    def cells(self, value: Any) -> dict[str, Any]:
        """An answer's leaves by column; lists and what has no columns as JSON."""
        found: dict[str, Any] = {}
        for column, path in self._paths.items():
            at = value
            for name in path:
                at = at.get(name) if isinstance(at, Mapping) else None
            if isinstance(at, Mapping | list):
                at = json.dumps(at, ensure_ascii=False)
            if at is not None:
                found[column] = at
        return found

    def _leaves(self, given: Any, path: _Path, chain: _Path) -> list[_Path]:
        """Paths of fields that are no objects themselves. ``chain``: references that led here."""
        self._visits += 1
        if self._visits > _FIELDS_MAX:
            raise ConfigError(f"schema: it has more than {_FIELDS_MAX:,} fields; ask for fewer")
        schema, chain = self._resolved(given, chain)
        variants = [
            one
            for key in ("anyOf", "oneOf", "allOf")
            for one in schema.get(key) or ()
            if not (isinstance(one, Mapping) and one.get("type") == "null")
        ]
        if len(variants) == 1:
            return self._leaves(variants[0], path, chain)
        items = schema.get("items")
        for one in (*variants, *((items,) if isinstance(items, Mapping) else ())):
            self._leaves(one, path, chain)  # looks for circles
        inner = schema.get("properties")
        if not isinstance(inner, Mapping) or not inner:
            return [path]
        return [
            leaf
            for name, one in inner.items()
            for leaf in self._leaves(one, (*path, str(name)), chain)
        ]

    def _resolved(self, given: Any, chain: _Path) -> tuple[Mapping[str, Any], _Path]:
        schema = given
        while isinstance(schema, Mapping) and (reference := schema.get("$ref")) is not None:
            # Bounded: no reference is followed twice.
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise ConfigError(
                    f"schema: it refers to {str(reference)[:80]!r}; only references into itself (#/$defs/...) work"
                )
            if reference in chain:
                raise ConfigError(
                    f"schema: {reference} refers to itself, which the API does not take"
                )
            chain = (*chain, reference)
            schema = self._plain
            for step in reference.lstrip("#/").split("/") if reference != "#" else []:
                name = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(name) if isinstance(schema, Mapping) else None
            if schema is None:
                raise ConfigError(f"schema: {reference} is not in it")
        return (schema if isinstance(schema, Mapping) else {}), chain


def _plainer(schema: Any) -> Any:
    """The same schema in the words that the SDK's translation knows: no lists of types, no old names."""
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {"properties", "$defs", "definitions"} and isinstance(value, Mapping):
            made["$defs" if key == "definitions" else key] = {
                name: _plainer(one) for name, one in value.items()
            }
        elif key in {"anyOf", "oneOf", "allOf"} and isinstance(value, list):
            made[key] = [_plainer(one) for one in value]
        elif key == "items":
            made[key] = _plainer(value)
        elif key == "$ref" and isinstance(value, str):
            made[key] = value.replace("#/definitions/", "#/$defs/", 1)
        elif key not in _UNSAID:
            made[key] = value
    if "properties" in made:
        made.setdefault("type", "object")
    kinds = made.get("type")
    if not isinstance(kinds, list):
        return made
    del made["type"]
    if "enum" in made or "const" in made:
        return made
    about = {key: made.pop(key) for key in ("title", "description") if key in made}
    defs = {"$defs": made.pop("$defs")} if "$defs" in made else {}
    variants = [{"type": kind, **(made if kind != "null" else {})} for kind in kinds]
    return {**defs, **about, "anyOf": variants}


def _name(path: _Path, paths: list[_Path]) -> str:
    """``outer.inner``; with slashes where another field has a dot in its name."""
    dotted = ".".join(path)
    return "/".join(path) if sum(".".join(one) == dotted for one in paths) > 1 else dotted
