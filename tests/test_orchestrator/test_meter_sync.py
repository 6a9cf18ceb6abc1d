"""The sync client: the same promises, for callers that block."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pydantic
import pytest

from budgets import BudgetExceeded, Cap, Ledger, scope
from orchestrator.errors import Unmetered
from orchestrator.gate import Gate
from orchestrator.retry import Retry
from orchestrator.simulator import Fault
from orchestrator.transport import Passes, http_client

from .metering import MODEL, ask, sync_rig

SLOW = "Hello [[sim:output=100]][[sim:pace=200]]"


class Label(pydantic.BaseModel):
    """What ``messages.parse`` is asked for."""

    label: str


def _create(client: Any) -> None:
    client.messages.create(**ask())


def _beta(client: Any) -> None:
    client.beta.messages.create(**ask())


def _parse(client: Any) -> None:
    answer = client.messages.parse(**ask('[[sim:text={"label": "a"}]]'), output_format=Label)
    assert answer.parsed_output.label == "a"


def _cut_json(client: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        client.messages.parse(**ask('[[sim:text={"la]]'), output_format=Label)


def _text_stream(client: Any) -> None:
    with client.messages.stream(**ask()) as stream:
        assert "".join(stream.text_stream)


def _beta_stream(client: Any) -> None:
    with client.beta.messages.stream(**ask()) as stream:
        stream.until_done()


def _create_stream(client: Any) -> None:
    assert [event.type for event in client.messages.create(**ask(), stream=True)][-1] == (
        "message_stop"
    )


def _raw(client: Any) -> None:
    assert client.messages.with_raw_response.create(**ask()).parse().usage.output_tokens == 50


def _raw_stream(client: Any) -> None:
    raw = client.messages.with_raw_response.create(**ask(), stream=True)
    assert [event.type for event in raw.parse()][-1] == "message_stop"


def _lines(client: Any) -> None:
    with client.messages.with_streaming_response.create(**ask(), stream=True) as raw:
        assert "event: message_stop" in list(raw.iter_lines())


def _bytes_of_plain(client: Any) -> None:
    with client.messages.with_streaming_response.create(**ask()) as raw:
        assert b"usage" in b"".join(raw.iter_bytes())


WAYS = [
    _create,
    _beta,
    _parse,
    _cut_json,
    _text_stream,
    _beta_stream,
    _create_stream,
    _raw,
    _raw_stream,
    _lines,
    _bytes_of_plain,
]


@pytest.mark.parametrize("call", WAYS)
def test_every_path_is_on_the_bill(call: Callable[[Any], None]) -> None:
    """Each way of calling ends on the server's bill to the nano-dollar."""
    with sync_rig() as on:
        call(on.client)
        assert on.kinds() == ["settle"]
        on.prove_exact(requests=1)


def test_compressed_streams_and_a_durable_ledger(tmp_path: Path) -> None:
    """All ways in a row, compressed streams among them, on a SQLite ledger."""
    with sync_rig(ledger=Ledger(tmp_path / "ledger.db", caps=[Cap("5")])) as on:
        for call in WAYS:
            on.sim.call(lambda sim: sim.faults.extend([Fault(kind="gzip")]))
            call(on.client)
            on.sim.call(lambda sim: sim.faults.clear())
        on.prove_exact(requests=len(WAYS))


def test_free_and_declined_paths() -> None:
    """Counting and reading are free; batches and unknown paths are declined (O-11)."""
    with sync_rig(cap="0") as on:
        client = on.client
        assert client.messages.count_tokens(model=MODEL, messages=ask()["messages"]).input_tokens
        assert client.models.list().data
        with pytest.raises(Unmetered, match="batches"):
            client.messages.batches.create(requests=[{"custom_id": "a", "params": ask()}])
        with pytest.raises(Unmetered, match="POST /v1/complete"):
            client.post("/v1/complete", cast_to=object, body={})
        with pytest.raises(BudgetExceeded):
            client.messages.create(**ask())
        on.prove_exact(requests=0)


def _leave_by_break(client: Any) -> None:
    with client.messages.stream(**ask(SLOW)) as stream:
        for _ in stream.text_stream:
            break


def _leave_unread(client: Any) -> None:
    with client.messages.stream(**ask(SLOW)):
        pass


def _leave_by_drop(client: Any) -> None:
    client.messages.create(**ask(SLOW), stream=True)


def _leave_by_loop(client: Any) -> None:
    for _ in client.messages.create(**ask(SLOW), stream=True):
        break


@pytest.mark.parametrize("leave", [_leave_by_break, _leave_unread, _leave_by_drop, _leave_by_loop])
def test_left_streams_are_in_doubt(leave: Callable[[Any], None]) -> None:
    """A stream that is left stays charged in full, and its slot is free (S-01)."""
    with sync_rig() as on:
        leave(on.client)
        gc.collect()
        assert on.kinds() == ["doubt"]
        on.prove()


@pytest.mark.parametrize(
    ("fault", "error", "end"),
    [
        (Fault(kind="overloaded"), anthropic.OverloadedError, "void"),
        (Fault(kind="reset", billed=True), anthropic.APIConnectionError, "doubt"),
        (Fault(kind="hang"), anthropic.APITimeoutError, "doubt"),
        (Fault(kind="invalid_json"), ValueError, "doubt"),
    ],
    ids=["overloaded", "reset", "hang", "invalid_json"],
)
def test_faults(fault: Fault, error: type[Exception], end: str) -> None:
    """An error status is void; what may have been billed is in doubt (S-08)."""
    with sync_rig(client={"timeout": httpx2.Timeout(30, read=0.2)}) as on:
        on.sim.call(lambda sim: sim.faults.extend([fault]))
        with pytest.raises(error):
            on.client.messages.create(**ask())
        assert on.kinds() == [end]
        on.prove()


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        (Fault(kind="cut", after_events=5), "doubt"),
        (Fault(kind="no_stop"), "doubt"),
        (Fault(kind="sse_error", after_events=5), "doubt"),
        (Fault(kind="sse_error", after_events=0), "void"),
    ],
    ids=["cut", "no_stop", "error", "error at once"],
)
def test_broken_streams(fault: Fault, end: str) -> None:
    """Streams that break are in doubt; an error before any output is void (S-02, S-05)."""
    with sync_rig() as on:
        on.sim.call(lambda sim: sim.faults.extend([fault]))
        try:
            with on.client.messages.stream(**ask("[[sim:output=100]]")) as stream:
                stream.until_done()
        except (anthropic.APIError, httpx2.HTTPError):
            pass
        assert on.kinds() == [end]


def test_connection_refused_is_void() -> None:
    """Nothing was sent, so nothing is charged (H-06)."""
    with sync_rig() as on:
        client = on.client.with_options(base_url="http://nowhere.invalid")
        with pytest.raises(anthropic.APIConnectionError):
            client.messages.create(**ask())
        assert on.kinds() == ["void"]
        on.prove_exact(requests=0)


def test_own_retries() -> None:
    """Tries are attempts with holds of their own, also where they block."""
    with sync_rig(retry=Retry(first_s=0.001), client={"max_retries": 2}) as on:
        on.sim.call(lambda sim: sim.faults.extend(["overloaded", "server_error"]))
        on.client.messages.create(**ask())
        assert on.kinds() == ["void", "void", "settle"]
        on.prove_exact(requests=1)


def test_guarded_client() -> None:
    """Behind the guard: calls pass, a copy without its meter does not (O-10)."""
    passes = Passes()
    with sync_rig(passes=passes, client={"http_client": http_client(passes)}) as on:
        _create(on.client)
        _text_stream(on.client)
        with pytest.raises(Unmetered, match="has lost its meter"):
            on.client.with_options(middleware=[]).messages.create(**ask())
        on.prove_exact(requests=2)


def test_threads() -> None:
    """Calls of many threads never pass the cap, and scopes stay apart (O-01, O-08)."""
    with sync_rig(cap="0.05", gate=Gate(width=8)) as on:
        declined = threading.Semaphore(0)

        def work(number: int) -> None:
            with scope(f"worker-{number % 4}"):
                try:
                    (_text_stream if number % 3 else _create)(on.client)
                except BudgetExceeded:
                    declined.release()

        with ThreadPoolExecutor(24) as pool:
            list(pool.map(work, range(120)))

        assert 0 < on.sim.bill.nanos <= 50_000_000
        parts = [on.ledger.balance(f"app/worker-{number}").posted_nanos for number in range(4)]
        assert sum(parts) == on.sim.bill.nanos
        on.prove_exact()


def test_nested_in_a_stream_under_a_gate_of_one() -> None:
    """A call inside an open stream gets through a gate of width 1, also when it blocks (R-10)."""
    with sync_rig(gate=Gate(width=1)) as on:
        with on.client.messages.stream(**ask(SLOW)) as stream:
            for _ in stream.text_stream:
                on.client.messages.create(**ask())
                break
        on.prove()


def test_keyboard_interrupt_while_waiting() -> None:
    """An interrupt in the middle of a call ends its hold in doubt, not in a leak (H-01)."""

    def interrupt(request: httpx2.Request) -> httpx2.Response:
        raise KeyboardInterrupt

    http = anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(interrupt))
    with sync_rig(client={"http_client": http}) as on:
        with pytest.raises(KeyboardInterrupt):
            on.client.messages.create(**ask())
        assert on.kinds() == ["doubt"]
        on.prove()
