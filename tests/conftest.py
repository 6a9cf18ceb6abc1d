"""What all tests stand on: no key, no settings and no proxy of the machine they run on."""

from __future__ import annotations

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


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's key or proxy must neither be used nor change what a test sees."""
    for name in _OF_THE_MACHINE:
        monkeypatch.delenv(name, raising=False)
