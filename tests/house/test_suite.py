"""The suite itself: every case has a name that a person can type, and that is the same in every process."""

from __future__ import annotations

import re

import pytest

#: What differs from one process to the next: the address of an object, a folder made for a test.
_OF_ONE_PROCESS = re.compile(r"0x[0-9a-f]{6,}|pytest-of-")
_CHARS_MOST = 200


def test_ids_are_short_and_plain(request: pytest.FixtureRequest) -> None:
    """No id is longer than a line or two, none needs escapes, and none holds what another process would not have.

    Workers that collect different ids end the run before its first test; the same bytes are not made twice where a
    time stamp is among them.
    """
    ids = [item.nodeid for item in request.session.items]

    assert [one[:300] for one in ids if len(one) > _CHARS_MOST] == []
    assert [one for one in ids if not one.isascii() or not one.isprintable() or "\\" in one] == []
    assert [one for one in ids if _OF_ONE_PROCESS.search(one)] == []
    assert len(set(ids)) == len(ids)
