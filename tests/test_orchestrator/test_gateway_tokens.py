"""Tokens: keys for clients, kept as digests only, let in and shut out while a gateway runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from budgets import Cap
from orchestrator.errors import ConfigError
from orchestrator.gateway import Tokens

from .gatewaying import Rig, ask, rig


async def _post(on: Rig, key: str) -> int:
    headers = {"x-api-key": key}
    async with on.http.post(f"{on.gateway.url}/v1/messages", json=ask(), headers=headers) as answer:
        return answer.status


def test_a_key_is_kept_nowhere(tmp_path: Path) -> None:
    """Its file holds a digest, and only its owner may read it."""
    tokens = Tokens.beside(tmp_path / "ledger.db")
    token, key = tokens.new("/team/alice/")
    file = tokens.folder / f"{token.id}.json"

    assert token.scope == "team/alice"
    assert key not in file.read_text(encoding="utf-8")
    assert key not in repr(token)
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(tokens.folder.stat().st_mode) == 0o700
    assert tokens.all() == [token]


def test_mistakes_are_named(tmp_path: Path) -> None:
    """No scope, an unknown id, a broken file: one sentence each."""
    tokens = Tokens(tmp_path)
    with pytest.raises(ConfigError, match="scope of its own"):
        tokens.new("/")
    with pytest.raises(ConfigError, match="none of this id"):
        tokens.revoke("T00000000")
    (tmp_path / "T00000000.json").write_text("{")
    with pytest.raises(ConfigError, match=r"T00000000\.json"):
        tokens.all()


@pytest.mark.parametrize(
    "field",
    [
        {"scope": "simulated/x"},
        {"scope": ""},
        {"scope": 5},
        {"digest": "zz"},
        {"digest": "00"},
        {"ends_at": "soon"},
        {"ends_at": "2030-01-01T00:00:00"},
        {"is_admin": "no"},
        {"further": 1},
    ],
    ids=str,
)
def test_a_file_that_is_no_token_is_named(tmp_path: Path, field: dict[str, object]) -> None:
    """Whatever stands in a token's file, it lets nobody in, and the sentence names the file."""
    tokens = Tokens(tmp_path)
    token, _ = tokens.new("team/alice")
    file = tmp_path / f"{token.id}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **field}))

    with pytest.raises(ConfigError, match=rf"{token.id}\.json"):
        tokens.all()


def test_a_token_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """While one is made nobody sees it, and if what belongs to it fails there is none."""
    tokens = Tokens(tmp_path)
    with contextlib.suppress(OSError), tokens.making("team/alice"):
        assert tokens.all() == []
        raise OSError("its cap could not be set")

    assert list(tmp_path.iterdir()) == []


async def test_a_broken_token_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that comes while the gateway runs and can't be read is one line in the log; others go on."""
    tokens = Tokens(tmp_path)
    _, alice = tokens.new("team/alice")
    async with rig(tokens=tokens) as on:
        (tmp_path / "T00000000.json").write_text("{")
        while not caplog.records:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)  # two more looks at the folder

        assert await _post(on, alice) == 200
    assert [record.getMessage() for record in caplog.records] == [
        f"gateway: {tmp_path / 'T00000000.json'}: this is no token; delete it or mend it"
    ]


async def test_the_caps_of_a_client_and_of_the_gateway_hold_together(tmp_path: Path) -> None:
    """A client spends in its own scope, under its caps, and under the gateway's, though the scopes lie apart."""
    tokens = Tokens(tmp_path)
    _, alice = tokens.new("team/alice")
    _, bob = tokens.new("team/bob")
    caps = (Cap("0.001", scope="team/bob"), Cap("0.0055", scope="gateway"))
    async with rig(caps=caps, tokens=tokens, anonymous="gateway", also="gateway") as on:
        first, second, declined = (
            await _post(on, alice),
            await _post(on, alice),
            await _post(on, bob),
        )

        assert (first, second, declined) == (200, 402, 402)
        assert await _post(on, "any") == 401  # there are tokens, so nobody is let in without one
        assert on.ledger.balance("team/alice").posted_nanos == on.sim.bill.nanos
        assert on.ledger.balance("gateway").posted_nanos == on.sim.bill.nanos
        on.prove_exact()


async def test_tokens_come_and_go_while_it_runs(tmp_path: Path) -> None:
    """A new token works within a second, and one that was taken back does not work any more."""
    tokens = Tokens(tmp_path)
    async with rig(tokens=tokens, anonymous="gateway") as on:
        assert await _post(on, "any") == 200
        token, key = tokens.new("team/alice")
        while (before := await _post(on, key)) != 200:
            assert before == 401
            await asyncio.sleep(0.02)
        assert await _post(on, "any") == 401
        tokens.revoke(token.id)
        after = 200
        while after == 200:
            # A request that is under way when its lease ends is cut off.
            with contextlib.suppress(aiohttp.ServerDisconnectedError):
                after = await _post(on, key)
            await asyncio.sleep(0.02)

        assert after == 403
        assert await _post(on, "any") == 401  # it was the last token: that opens nothing
        on.prove_exact()


async def test_a_token_ends_and_an_admin_sees_all(tmp_path: Path) -> None:
    """After its end a token is nothing; one of an admin sees the figures of every client."""
    tokens = Tokens(tmp_path)
    _, over = tokens.new("team/alice", ends=datetime.now(UTC) - timedelta(seconds=1))
    _, admin = tokens.new("ops", is_admin=True)
    async with rig(tokens=tokens) as on:
        url = f"{on.gateway.url}/earmark/budget"
        async with on.http.get(url, headers={"authorization": f"Bearer {admin}"}) as answer:
            scopes = {one["scope"] for one in (await answer.json())["clients"]}

        assert await _post(on, over) == 403
        assert "ops" in scopes
