"""What all tests stand on: no key, no settings and no proxy of the machine they run on."""

from __future__ import annotations

import gc
import signal

import pytest

# Where Ctrl-C is ignored (a job in the background), programs that the tests start would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

_OF_THE_MACHINE = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "EARMARK_CONFIG",
    "EARMARK_HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
)

#: Characters of a value that are part of an id; the rest of it is not needed to find a case.
_ID_CHARS = 40


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Texts and bytes are named by what can be read of them, else by their argument: never by what a clock decides."""
    if isinstance(val, int) and abs(val) >= 10**_ID_CHARS:
        return argname
    if not isinstance(val, str | bytes):
        return None
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    line = " ".join(text.split())
    is_plain = line.isascii() and line.isprintable() and "\\" not in line
    return line[:_ID_CHARS] if is_plain else argname


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there before the first test stays, so that no collection of garbage looks at it again.

    Many tests collect garbage to prove that nothing is left. With all modules and tests in sight, each of those
    looks at more than a million objects: half of a second, and more than all else that such a test does.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's key or proxy must neither be used nor change what a test sees."""
    for name in _OF_THE_MACHINE:
        monkeypatch.delenv(name, raising=False)
