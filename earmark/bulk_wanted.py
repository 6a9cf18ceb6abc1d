"""What is wanted of every document: labels, words and schema, read from their files, and the task they make."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .failures import Mistake

if TYPE_CHECKING:
    from pydantic import BaseModel

    from patterns.bulk import Task

_WORDS_MAX = 8 * 1024 * 1024
_PYDANTIC = "pydantic:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All that makes a task, beside its model.

    Attributes:
        command: ``classify``, ``extract`` or ``map``.
        labels: of ``classify``.
        words: the text of the rubric or the prompt.
        schema: a JSON schema, or a model as ``pydantic:module:Class``; None for free text.
    """

    command: str
    labels: tuple[str, ...] = ()
    words: str = ""
    schema: Mapping[str, Any] | str | None = None

    def task(self, model: str, max_tokens: int | None) -> Task:
        """The task.

        Raises:
            Mistake, ConfigError: it can't be made of this.
        """
        from patterns.bulk import Classify, Extract, Map

        fields = fields_of(self.schema)
        if self.command == "classify":
            return Classify(
                labels=self.labels, rubric=self.words, model=model, output_tokens=max_tokens
            )
        if self.command == "map":
            return Map(
                instructions=self.words, fields=fields, model=model, output_tokens=max_tokens
            )
        assert fields is not None
        return Extract(
            fields=fields, instructions=self.words, model=model, output_tokens=max_tokens
        )

    def to_json(self) -> dict[str, Any]:
        """As it is written down."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """From what was written down.

        Raises:
            KeyError, TypeError: it is something else.
        """
        return cls(**{**record, "labels": tuple(record["labels"])})


def read_words(path: Path | None, what: str) -> str:
    """A rubric or a prompt out of its file; empty without one.

    Raises:
        Mistake, OSError: it can't be read.
    """
    if path is None:
        return ""
    try:
        if path.stat().st_size > _WORDS_MAX:
            raise Mistake(f"{what} {path}: it is larger than {_WORDS_MAX >> 20} MiB; shorten it")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Mistake(f"{what} {path}: it is not UTF-8 text; save it as UTF-8") from None


def read_schema(given: str | None) -> Mapping[str, Any] | str | None:
    """A schema out of its file; the name of a model (``pydantic:module:Class``) as it is.

    Raises:
        Mistake, OSError: it can't be read.
    """
    if given is None or given.startswith(_PYDANTIC):
        return given
    try:
        schema = json.loads(read_words(Path(given), "schema"))
    except RecursionError:
        raise Mistake(f"schema {given}: it is nested too deeply; flatten it") from None
    except json.JSONDecodeError as error:
        raise Mistake(
            f"schema {given}: it is not JSON (line {error.lineno}: {error.msg}); mend it"
        ) from None
    if not isinstance(schema, dict):
        raise Mistake(f"schema {given}: it is no JSON object; a schema is one")
    return schema


def fields_of(
    schema: Mapping[str, Any] | str | None,
) -> Mapping[str, Any] | type[BaseModel] | None:
    """A JSON schema as it is, a model out of its module.

    Raises:
        Mistake: there is no such model.
    """
    return _model(schema.removeprefix(_PYDANTIC)) if isinstance(schema, str) else schema


def _model(given: str) -> type[BaseModel]:
    from pydantic import BaseModel

    module, _, name = given.partition(":")
    if not module or not name:
        raise Mistake(f"--schema {_PYDANTIC}{given}: write {_PYDANTIC}module:Class")
    sys.path.insert(0, str(Path.cwd()))  # a program does not look in the working folder by itself
    try:
        model = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise Mistake(
            f"--schema: the module {module} can't be imported ({type(error).__name__}: {error})"
        ) from None
    finally:
        sys.path.pop(0)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise Mistake(f"--schema: {module} has no pydantic model that is called {name}")
    return model
