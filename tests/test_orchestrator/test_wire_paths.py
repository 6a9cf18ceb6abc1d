"""No path that can cost money is taken for a free one."""

from __future__ import annotations

import re
from pathlib import Path

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.wire import classify_path

KNOWN = [
    ("POST", "/v1/messages", "messages"),
    ("post", "/v1/messages?beta=true", "messages"),
    ("POST", "https://api.anthropic.com/v1/messages", "messages"),
    ("POST", "http://127.0.0.1:8080/v1/messages?beta=true#x", "messages"),
    ("POST", "/v1/messages/count_tokens", "count_tokens"),
    ("POST", "/v1/messages/count_tokens?beta=true", "count_tokens"),
    ("POST", "/v1/messages/batches", "batches_create"),
    ("POST", "/v1/messages/batches/msgbatch_1/cancel", "free"),
    ("POST", "/v1/files", "free"),
    ("POST", "/v1/skills", "free"),
    ("POST", "/v1/skills/skill_1/versions", "free"),
    ("GET", "/v1/messages/batches/msgbatch_1/results", "free"),
    ("GET", "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results", "free"),
    ("GET", "/v1/models", "free"),
    ("get", "/anything/at/all", "free"),
    ("HEAD", "/", "free"),
    ("DELETE", "/v1/messages/batches/msgbatch_1", "free"),
    ("DELETE", "/v1/files/file_1", "free"),
]


@pytest.mark.parametrize(("method", "path", "kind"), KNOWN)
def test_known_paths(method: str, path: str, kind: str) -> None:
    """Each known request is what it is, with a query or as an absolute URL too."""
    assert classify_path(method, path) == kind


UNMETERED = [
    ("POST", "/v1/complete"),
    ("POST", "/v1/sessions"),
    ("POST", "/v1/sessions/s/events"),
    ("POST", "/v1/agents"),
    ("POST", "/v1/dreams"),
    ("POST", "/v1/deployments"),
    ("POST", "/v1/organizations/spend_limits"),
    ("POST", "/v1/unknown"),
    ("POST", "/"),
    ("POST", ""),
    ("PUT", "/v1/messages"),
    ("PATCH", "/v1/files/f"),
    ("BREW", "/v1/files"),
    ("", "/v1/files"),
]


@pytest.mark.parametrize(("method", "path"), UNMETERED)
def test_what_is_not_known_may_bill(method: str, path: str) -> None:
    """O-11, O-12: a path that nobody has read about is refused, never passed through."""
    assert classify_path(method, path) == "unmetered"


TRICKS = [
    "/v1//messages",
    "//v1/messages",
    "/v1/messages/",
    "/v1/messages//",
    "/V1/messages",
    "/v1/Messages",
    "/v1/%6Dessages",
    "/v1%2Fmessages",
    "/v1/files/../messages",
    "/v1/files/%2e%2e/messages",
    "/v1/./messages",
    "/v1/messages;x",
    "/v1/messages%00",
    "/v1/messages\x00",
    "/v1/mess\nages",
    "/v1/fi\nles",
    " /v1/files",
    "/v1/files ",
    "\\v1\\files",
    "/v1/messages/batches/../../messages/cancel",
    "/v1/messages/batches/a/b/cancel",
    "/v1/messages/batches//cancel",
    "/v1/messages/batches/x%2F..%2F../cancel",
    "/v1/messages/batches/x/cancel/",
    "/v1/messages/batches/x/cancel\n",
    "/v1/ﬁles",
    "v1/files",
    "http://[::1/v1/files",
]


@pytest.mark.parametrize("path", TRICKS)
def test_no_spelling_trick_is_free(path: str) -> None:
    """Slashes, escapes, dots and case that a server might forgive do not open a hole here."""
    assert classify_path("POST", path) in {"unmetered", "messages"}
    assert classify_path("POST", path) == "unmetered" or path.startswith("//")


@given(st.text(max_size=60))
def test_any_other_post_is_unmetered(path: str) -> None:
    """Only exact known spellings are anything else."""
    kind = classify_path("POST", path)
    assert kind == "unmetered" or "/v1/" in path


@given(st.text(alphabet="/v1messagbtchfil.%2e?#:;\\ \n", max_size=40))
def test_scrambled_paths_are_never_free(tail: str) -> None:
    """Whatever is appended to a path that bills, it does not become free."""
    assert classify_path("POST", "/v1/messages" + tail) != "free"


def test_every_post_of_the_sdk_is_known_or_refused() -> None:
    """Of all POSTs that the SDK can send, only those read here are sent (S-09)."""
    root = Path(anthropic.__file__).parent / "resources"
    found: set[str] = set()
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        found |= set(re.findall(r'_post\(\s*(?:path_template\(\s*)?f?"(/v1/[^"]*)"', text))
    assert len(found) > 20
    paths = {re.sub(r"\{[^}]*\}", "id_1", path).split("?")[0] for path in found}
    kinds = {path: classify_path("POST", path) for path in paths}
    assert {path for path, kind in kinds.items() if kind != "unmetered"} == {
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/messages/batches",
        "/v1/messages/batches/id_1/cancel",
        "/v1/files",
        "/v1/skills",
        "/v1/skills/id_1/versions",
    }
