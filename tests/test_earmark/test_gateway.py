"""earmark gateway: what it says, who it lets in, how it ends, and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from budgets.caps import Cap
from budgets.ledger import Ledger

from .conftest import Program

BODY = {
    "model": "claude-haiku-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello [[sim:output=90]]"}],
}

#: A hundred output tokens at $5 a million: more than half of a bound. Three bounds are more than five of it.
LEAST_BOUND = 0.0005


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A gateway in a process of its own, and the document that it prints once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "earmark", "gateway", "--port", "0", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while not text.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        text += line
    try:
        yield process, json.loads(text)
    finally:
        process.kill()
        process.communicate()


def post(url: str, key: str = "any", body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """One message; status and JSON."""
    request = urllib.request.Request(
        f"{url}/v1/messages",
        json.dumps(body or BODY).encode(),
        {"x-api-key": key, "anthropic-version": "2023-06-01", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_it_serves_under_its_cap_until_it_is_interrupted(folder: Path) -> None:
    """Calls are charged in the scope ``gateway``, the cap holds, and Ctrl-C is its normal end."""
    with started("--simulate", "--cap-day", "0.002") as (process, said):
        statuses = [post(said["url"])[0] for _ in range(6)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)

        assert said["caps"] == ["$0.002 per day (UTC) on scope 'simulated/gateway'"]
        assert statuses[0] == 200
        assert statuses[-1] == 402
        assert (process.returncode, rest, errors) == (0, "", "")
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        balance = ledger.balance("simulated/gateway")
        assert 0 < balance.posted_nanos <= 2_000_000
        assert balance.held_nanos == balance.in_doubt_nanos == 0
        assert ledger.check().findings == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_killed_in_the_middle_its_holds_are_in_doubt(folder: Path) -> None:
    """After kill -9 the next start finds what was under way and sets it in doubt, charged in full."""
    hanging = {**BODY, "messages": [{"role": "user", "content": "[[sim:delay=60000]]"}]}
    with started("--simulate", "--cap-day", "1") as (process, said):
        assert post(said["url"])[0] == 200
        calls = [
            threading.Thread(target=_try_to_post, args=(said["url"], hanging)) for _ in range(3)
        ]
        for call in calls:
            call.start()
        while _held_usd(said["url"]) < 5 * LEAST_BOUND:
            time.sleep(0.05)
        process.kill()
        process.wait()
        for call in calls:
            call.join()
    with started("--simulate", "--cap-day", "1") as (_, said):
        with urllib.request.urlopen(f"{said['url']}/earmark/budget", timeout=10) as answer:
            client = json.load(answer)["clients"][0]

        assert client["scope"] == "simulated/gateway"
        assert float(client["in_doubt_usd"]) > 0
        assert float(client["held_usd"]) == 0
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        assert [hold.state for hold in ledger.open_holds()] == ["doubt"] * 3
        assert ledger.check().findings == []


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_twice_does_not_wait(folder: Path) -> None:
    """The second one gives up what is under way: in doubt, at once, with nothing held and an end of its own."""
    hanging = {**BODY, "messages": [{"role": "user", "content": "[[sim:delay=60000]]"}]}
    with started("--simulate", "--cap-day", "1") as (process, said):
        calls = [
            threading.Thread(target=_try_to_post, args=(said["url"], hanging)) for _ in range(3)
        ]
        for call in calls:
            call.start()
        while _held_usd(said["url"]) < 3 * LEAST_BOUND:
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        while _answers(said["url"]):  # its door is closed: the first one was heard
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        for call in calls:
            call.join()

        assert (process.returncode, errors) == (0, "")
        assert time.monotonic() - began < 8
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        assert {hold.state for hold in ledger.open_holds()} == {"doubt"}
        assert ledger.check().findings == []


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/earmark/health", timeout=10).close()
    except OSError:
        return False
    return True


def _try_to_post(url: str, body: dict[str, Any]) -> None:
    with suppress(OSError):
        post(url, body=body)


def _held_usd(url: str) -> float:
    with urllib.request.urlopen(f"{url}/earmark/budget", timeout=10) as answer:
        return float(json.load(answer)["clients"][0]["held_usd"])


def test_tokens_are_made_listed_and_taken_back(earmark: Program, folder: Path) -> None:
    """A token has its scope and its cap in the ledger; its key is shown once and works nowhere but here."""
    made = earmark("gateway", "token", "new", "--scope", "team/alice", "--cap-day", "5", "--json")
    listed = earmark("gateway", "token", "list", "--json")
    with Ledger(folder / ".earmark" / "ledger.db") as ledger:
        caps = [entry.cap for entry in ledger.caps() if entry.cap.scope]

    assert made.json["caps"] == ["$5.00 per day (UTC) on scope 'team/alice'"]
    assert made.json["key"].startswith("earmark-")
    assert [one["id"] for one in listed.json["tokens"]] == [made.json["id"]]
    assert made.json["key"] not in listed.out
    assert Cap("5", per="day", scope="team/alice", owner="earmark gateway token") in caps
    shown = earmark("gateway", "token", "list")
    assert made.json["id"] in shown.out
    assert earmark("gateway", "token", "revoke", made.json["id"]).code == 0
    assert "any program on this machine" in earmark("gateway", "token", "list").out
    assert earmark("gateway", "token", "revoke", made.json["id"]).code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--cap-day", "20"), "there is no API key"),
        (("--simulate", "--host", "0.0.0.0"), "needs tokens"),
        (("--simulate", "--cap-day", "much"), "cap per day"),
        (("--simulate", "--cap-day", "5", "--cap-month", "3"), "so it can never be reached"),
        (("--simulate", "--host", "nowhere.invalid"), "needs tokens"),
        (("token", "new", "--scope", "/"), "scope of its own"),
        (("token", "new", "--scope", "/", "--cap-day", "5"), "scope of its own"),
        (("token", "new", "--scope", "simulated/x", "--cap-day", "5"), "is play money"),
        (("token", "new", "--scope", "simulated"), "is play money"),
        (("token", "new", "--scope", "Simulated/x"), "is play money"),
        (("token", "new", "--scope", "a/../b"), "unusable segment"),
        (("token", "new", "--scope", "/".join("abcdefghijklmnopqrstuvw")), "name a shorter one"),
        (("token", "new", "--scope", "a", "--cap-day", "5", "--cap", "3"), "can never be reached"),
        (("token", "new", "--scope", "a", "--ends", "2020-01-01"), "is over already"),
        (("token", "new", "--scope", "gateway", "--cap", "0"), "is the gateway's own"),
        (("token", "new", "--scope", "/gateway/", "--cap-day", "5"), "is the gateway's own"),
    ],
)
def test_mistakes_get_one_sentence(
    earmark: Program, folder: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """Without a key, without tokens, without sense: exit code 2 and one sentence, and nothing is made."""
    ran = earmark("gateway", *arguments)

    assert ran.code == 2
    assert sentence in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_a_port_that_is_taken_changes_nothing(earmark: Program, folder: Path) -> None:
    """It takes its port first: a start that fails says so in one sentence and leaves caps and ledger as they were."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        anew = earmark("gateway", "--simulate", "--port", str(port), "--cap-day", "5")
        assert list(folder.iterdir()) == []
        earmark("gateway", "token", "new", "--scope", "team/alice", "--cap-day", "1")
        before = earmark("budget", "show", "--json").json["caps"]
        again = earmark("gateway", "--simulate", "--port", str(port), "--cap-day", "5")

    for ran in (anew, again):
        assert ran.code == 2
        assert f"port {port} of 127.0.0.1 is taken" in ran.err
        assert len(ran.err.strip().splitlines()) == 1
    assert earmark("budget", "show", "--json").json["caps"] == before


def test_a_cap_out_of_reach_is_said(earmark: Program) -> None:
    """A token's cap above one around it works, with a sentence that it can't be reached."""
    earmark("gateway", "token", "new", "--scope", "team", "--cap-day", "1")
    made = earmark("gateway", "token", "new", "--scope", "team/alice", "--cap-day", "5", "--json")

    assert made.code == 0
    assert "'team/alice' is above the cap of $1.00 per day (UTC) on scope 'team'" in made.err
