"""earmark simulate: a stand-in that answers, and stops when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
def test_it_serves_until_it_is_interrupted(folder: Path, as_json: bool) -> None:
    """It says where it listens as soon as it does, answers there, and Ctrl-C is its normal end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "earmark", "simulate", "--port", "0", "--rpm", "100"]
        + ["--faults", "overloaded=0.1"]
        + ["--json"] * as_json,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if as_json:
        text = ""
        while not text.endswith("}\n"):
            text += process.stdout.readline()
        url = json.loads(text)["url"]
    else:
        first = process.stdout.readline()
        assert "nothing is spent" in first
        url = next(word for word in first.split() if word.startswith("http"))
    with urllib.request.urlopen(f"{url}/sim/bill", timeout=10) as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert ("on the bill" in rest) is not as_json
