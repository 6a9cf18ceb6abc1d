"""Tokens: keys that a gateway's operator gives to clients, each with a scope. Only digests of them are kept.

Each token is a file of its own beside the ledger, readable by its owner only; to take one back is to
delete its file. A running gateway sees that within a second.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from budgets.errors import InvalidScope
from budgets.scopes import SIMULATED, normal_scope
from orchestrator.errors import ConfigError

from .lease import KEY_MARK, digest_of

_ID = re.compile(r"T[0-9a-f]{8}")
_DIGEST_BYTES = 32
#: Segments of its scope. Below it come a session and up to eight agents, above it ``simulated``; 32 are the most.
_DEEPEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is kept of a token.

    Attributes:
        id: names it; no secret.
        scope: where the charges of its client are reported, and whose caps apply.
        digest: SHA-256 of its key, in hex.
        made_at: when it was made (ISO 8601).
        ends_at: when it ends; None if it does not.
        is_admin: may see the figures of all scopes.
    """

    id: str
    scope: str
    digest: str
    made_at: str
    ends_at: str | None = None
    is_admin: bool = False

    @property
    def ends(self) -> datetime | None:
        """When it ends."""
        return None if self.ends_at is None else datetime.fromisoformat(self.ends_at)


class Tokens:
    """The tokens of one ledger.

    Args:
        folder: where they are; made when the first one is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def beside(cls, ledger: Path) -> Tokens:
        """Those that belong to a ledger's file."""
        return cls(ledger.with_name(f"{ledger.stem}-gateway-tokens"))

    def new(
        self, scope: str, *, ends: datetime | None = None, is_admin: bool = False
    ) -> tuple[Token, str]:
        """Make one. Returns it and its key, which is not kept anywhere.

        Raises:
            InvalidScope: not a scope path.
            ConfigError: no scope, or one that a token can't have.
            OSError: it can't be written.
        """
        with self.making(scope, ends=ends, is_admin=is_admin) as made:
            return made

    @contextmanager
    def making(
        self, scope: str, *, ends: datetime | None = None, is_admin: bool = False
    ) -> Iterator[tuple[Token, str]]:
        """As ``new``, but it is good only once the block is left, and is not made if the block fails.

        Raises:
            InvalidScope, ConfigError, OSError: as for ``new``; nothing was made.
        """
        path = scope_of_token(scope)
        key = f"{KEY_MARK}{secrets.token_urlsafe(32)}"
        token = Token(
            id=f"T{secrets.token_hex(4)}",
            scope=path,
            digest=digest_of(key).hex(),
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            ends_at=None if ends is None else ends.astimezone(UTC).isoformat(),
            is_admin=is_admin,
        )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Under its own name only when it is whole: a running gateway reads it at any moment.
        fresh = self._file(token.id).with_suffix(".new")
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "w", encoding="utf-8") as writer:
                writer.write(json.dumps(asdict(token)) + "\n")
            yield token, key
            fresh.rename(self._file(token.id))
        finally:
            fresh.unlink(missing_ok=True)

    def all(self) -> list[Token]:
        """All tokens, oldest first.

        Raises:
            ConfigError: a file that is no token; names it.
        """
        return sorted(self._read(), key=lambda one: (one.made_at, one.id))

    def revoke(self, token_id: str) -> Token:
        """Take one back.

        Raises:
            ConfigError: there is none of this id.
        """
        for token in self.all():
            if token.id == token_id:
                self._file(token.id).unlink(missing_ok=True)
                return token
        raise ConfigError(
            f"token {token_id}: there is none of this id (earmark gateway token list)"
        )

    def stamp(self) -> tuple[object, ...]:
        """Changes whenever a token is made or taken back."""
        try:
            return tuple(sorted(entry.name for entry in os.scandir(self.folder)))
        except FileNotFoundError:
            return ()

    def _file(self, token_id: str) -> Path:
        return self.folder / f"{token_id}.json"

    def _read(self) -> Iterator[Token]:
        if not self.folder.is_dir():
            return
        for file in self.folder.glob("T*.json"):
            if not _ID.fullmatch(file.stem):
                continue
            try:
                yield _checked(Token(**json.loads(file.read_text(encoding="utf-8"))))
            except FileNotFoundError:
                continue  # taken back at this moment
            except (ConfigError, InvalidScope) as error:
                raise ConfigError(f"{file}: {error}") from None
            except (ValueError, TypeError):
                raise ConfigError(f"{file}: this is no token; delete it or mend it") from None


def scope_of_token(scope: str) -> str:
    """The scope of a token, checked.

    Raises:
        InvalidScope: not a scope path.
        ConfigError: everything, play money, or so deep that its client's own agents find no place below it.
    """
    path = normal_scope(scope)
    if not path:
        raise ConfigError("token: it needs a scope of its own, such as team/alice")
    if path.partition("/")[0].lower() == SIMULATED:
        raise ConfigError(
            f"token: {path!r} is play money, which no real cap covers; name another scope, such as team/alice "
            "(a gateway with --simulate puts it below simulated by itself)"
        )
    if path.count("/") >= _DEEPEST:
        raise ConfigError(
            f"token: {path[:80]!r} has more than {_DEEPEST} segments, and the sessions and agents of its client "
            "are told apart below it; name a shorter one"
        )
    return path


def _checked(token: Token) -> Token:
    """A token that was read from a file, which anybody may have written."""
    scope_of_token(token.scope)
    if len(bytes.fromhex(token.digest)) != _DIGEST_BYTES or token.is_admin not in (True, False):
        raise ValueError(token.id)
    if token.ends is not None and token.ends.tzinfo is None:
        raise ValueError(token.id)
    return token
