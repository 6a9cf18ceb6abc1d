"""One request for a bulk job: what is wanted, of what, and how; as it was asked, and as it is written down."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from .bulk_options import MAX_BYTES, MAX_PAGES, Options, Way, listed
from .bulk_wanted import Wanted
from .failures import Mistake

#: In a run's folder: all that is needed to go on with it, wherever that is done.
FILE = "request.json"
#: Not written down: what is said anew each time, what the run's own record says, and what may carry a secret.
_NOT_KEPT = frozenset({"ask", "dry_run", "resume", "json", "cap", "webhook"})
_PATHS = frozenset({"out", "ledger", "config", "prices"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Options):
    """What was asked on the command line: its options, and these.

    Attributes:
        source: the documents.
        wanted: what is asked about each.
        words: the options that make the task, as they were written, for the command that goes on.
        facts: the task in the run's own record.
    """

    source: Path
    wanted: Wanted
    words: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Options, **own: Any) -> Self:
        """Of its options and what else it is."""
        return cls(**{one.name: getattr(options, one.name) for one in fields(Options)}, **own)

    @property
    def command(self) -> str:
        """``classify``, ``extract`` or ``map``."""
        return self.wanted.command

    @property
    def formats(self) -> tuple[str, ...]:
        """Tables to write."""
        return listed(self.format)

    @property
    def again(self) -> tuple[str, ...]:
        """The command line of this job after the program's name, without where its results are.

        Nor the webhook: it is written down and shown, and such a URL may carry a secret.
        """
        given: list[tuple[str, object]] = [
            ("--model", self.model),
            ("--max-tokens", self.max_tokens),
            ("--template", self.template),
            ("--column", self.column),
            ("--key", self.key),
            *(("--include", one) for one in self.include or ()),
            *(("--exclude", one) for one in self.exclude or ()),
            ("--max-bytes", None if self.max_bytes == MAX_BYTES else self.max_bytes),
            ("--max-pages", None if self.max_pages == MAX_PAGES else self.max_pages),
            ("--format", None if self.formats == ("csv",) else ",".join(self.formats)),
            ("--via", None if self.via is Way.DIRECT else self.via.value),
            ("--notify", self.notify),
        ]
        options = [
            str(word) for name, value in given if value is not None for word in (name, value)
        ]
        flags = [
            name
            for name, is_set in (
                ("--hidden", self.hidden),
                ("--urgent", self.urgent),
                ("--failed-direct", self.failed_direct),
                ("--simulate", self.simulate),
            )
            if is_set
        ]
        return (self.command, str(self.source), *self.words, *options, *flags)

    def to_json(self) -> dict[str, Any]:
        """As it is written down: by paths that hold in every working folder."""
        kept = [one.name for one in fields(Options) if one.name not in _NOT_KEPT]
        options = {name: getattr(self, name) for name in kept}
        options.update(
            {name: str(Path(options[name]).resolve()) for name in _PATHS if options[name]}
        )
        options["template"] = _resolved(self.template)
        return {
            "source": str(self.source.resolve()),
            "wanted": self.wanted.to_json(),
            "words": [_resolved(word) for word in self.words],
            "facts": dict(self.facts),
            "options": options,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """From what was written down.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        options = dict(record["options"])
        for name in _PATHS:
            options[name] = Path(options[name]) if options[name] else None
        options["via"] = Way(options["via"])
        return cls(
            source=Path(record["source"]),
            wanted=Wanted.from_json(record["wanted"]),
            words=tuple(record["words"]),
            facts=record["facts"],
            **options,
        )


def keep(request: Request, run_folder: Path, *, out: Path, fingerprint: str) -> None:
    """Write down in a run's folder what is needed to go on with it."""
    if not run_folder.is_dir():
        return
    record = {
        "fingerprint": fingerprint,
        "request": replace(request, out=out.resolve()).to_json(),
    }
    fresh = run_folder / f"{FILE}.new"
    fresh.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(run_folder / FILE)


def kept_in(run_folder: Path) -> tuple[Request, str] | None:
    """The request of a run, and the fingerprint of its task; None for a run that is no bulk job, or an old one."""
    try:
        record = json.loads((run_folder / FILE).read_text(encoding="utf-8"))
        return Request.from_json(record["request"]), str(record["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def notified(request: Request) -> tuple[tuple[str, ...], str]:
    """The command and the webhook that are told at the end.

    Raises:
        Mistake: they can't be used; nothing was sent.
    """
    try:
        command = tuple(shlex.split(request.notify or ""))
    except ValueError as error:
        raise Mistake(
            f"--notify {request.notify}: it is no command ({error}); mend its quotes"
        ) from None
    webhook = request.webhook or ""
    if webhook and not webhook.startswith(("https://", "http://")):
        raise Mistake("--webhook: it is no URL; write one that begins with https:// or http://")
    return command, webhook


def _resolved(word: str | None) -> str | None:
    """The name of a file as one that holds in every working folder; anything else as it is."""
    try:
        return str(Path(word).resolve()) if word and Path(word).is_file() else word
    except (OSError, ValueError):  # too long for a name
        return word
