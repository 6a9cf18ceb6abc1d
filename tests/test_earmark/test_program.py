"""The program as a process: exit codes, JSON alone on standard output, pipes, UTF-8, and a quick --help."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from budgets.caps import Cap
from budgets.errors import BudgetExceeded
from budgets.ledger import Ledger
from earmark import output
from earmark.exits import MEANINGS, Exit
from earmark.failures import code_of, report_failure
from earmark.main import COMMANDS
from orchestrator.errors import ConfigError, SpendLimit

from .conftest import Past, Program

PROGRAM = [sys.executable, "-m", "earmark"]


def start(
    *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the program, with pipes and a clean environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("EARMARK_")}
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=inherited | (env or {}),
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Exit code and both streams."""
    out, err = process.communicate(timeout=60)
    return process.returncode, (out or b"").decode("utf-8"), err.decode("utf-8")


def program(
    *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE, env: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run the program to its end."""
    return finish(start(*arguments, stdout=stdout, env=env))


def test_help_answers_quickly_and_lists_every_command(folder: Path) -> None:
    """``earmark --help`` takes under 0.4 s of work, with all commands and exit codes."""
    before = os.times()
    code, out, err = program("--help")
    after = os.times()
    assert (code, err) == (0, "")
    # Work rather than time by the clock, which other tests on this machine share.
    worked_s = after.children_user + after.children_system
    assert worked_s - before.children_user - before.children_system < 0.4
    assert all(f" {name} " in out for name in COMMANDS)
    assert all(f"{code.value} " in out for code in MEANINGS)


def test_help_imports_neither_money_nor_the_sdk(folder: Path) -> None:
    """What --help needs is the table of commands alone."""
    script = (
        "import sys; from earmark.main import run; run(['--help']);"
        "heavy = {'budgets', 'orchestrator', 'anthropic', 'apsw', 'aiohttp', 'psutil', 'asyncio'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_version_is_printed(folder: Path) -> None:
    """``earmark --version`` names the program and its version."""
    code, out, _ = program("--version")
    assert code == 0
    assert out.startswith("earmark 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Usage"),
        (("budget",), "Usage"),
        (("bugdet",), "budget"),
        (("budget", "show", "--nonsense"), "--nonsense"),
        (("budget", "set", "5.0.0", "--per", "day"), "5.0.0"),
        (("budget", "set", "5", "--per", "hour"), "hour"),
        (("budget", "set", "5", "--per", "day", "--tz", "Mars/Base"), "Mars/Base"),
        (("budget", "set", "5"), "--per"),
        (("budget", "show", "--scope", "a//b"), "a//b"),
        (("budget", "check", "--file", "none.toml"), "none.toml"),
        (("ledger", "resolve", "abcdef", "--not-billed"), "no ledger yet"),
        (("ledger", "adjust", "abcdef", "--cost", "1", "--reason", "x"), "no ledger yet"),
        (("ledger", "lines", "--since", "yesterday"), "yesterday"),
        (("ledger", "check", "--ledger", "."), "ledger"),
        (("runs", "show", "nothing"), "nothing"),
        (("estimate", "none.toml"), "none.toml"),
        (("prices", "claude-opsu-5"), "claude-opus-5"),
        (("prices", "--prices", "none.toml"), "none.toml"),
        (("simulate", "--faults", "rain=0.1"), "rain"),
        (("simulate", "--faults", "overloaded"), "KIND=CHANCE"),
    ],
)
def test_a_mistake_ends_with_2_and_a_sentence(
    earmark: Program, arguments: tuple[str, ...], words: str
) -> None:
    """No traceback: what was wrong stands on standard error (help for nobody's command on either).

    In this process: that the program's own says the same, the next test shows.
    """
    done = earmark(*arguments)
    assert done.code == 2
    assert words in (done.err + done.out)
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [("bugdet",), ("budget", "show", "--scope", "a//b"), ("ledger", "check", "--ledger", ".")],
)
def test_a_mistake_is_one_json_document_too(folder: Path, arguments: tuple[str, ...]) -> None:
    """With --json a program that reads standard output always gets exactly one document."""
    code, out, err = program(*arguments, "--json")
    document = json.loads(out)
    assert (code, document["exit_code"]) == (2, 2)
    assert document["error"] in err


@pytest.mark.parametrize(
    "content", [b"this is not a database at all, whatever its name says" * 40, b"SQLite format 3\0"]
)
def test_a_damaged_ledger_is_one_sentence_and_left_as_it_is(folder: Path, content: bytes) -> None:
    """Exit code 2, no traceback, not a byte changed."""
    path = folder / "ledger.db"
    path.write_bytes(content)
    code, out, err = program("ledger", "check", "--ledger", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("earmark: ledger")
    assert err.count("\n") == 1
    assert path.read_bytes() == content


def test_a_ledger_of_a_later_version_is_left_alone(folder: Path, past: Past) -> None:
    """It says to upgrade, with exit code 2."""
    import apsw

    db = apsw.Connection(str(past.path))
    db.pragma("user_version", 999)
    db.close()
    code, _, err = program("ledger", "lines")
    assert code == 2
    assert "later Earmark" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("budget", "show"),
        ("budget", "check"),
        ("ledger", "lines"),
        ("ledger", "holds"),
        ("ledger", "check"),
        ("ledger", "report"),
        ("runs", "list"),
    ],
    ids=" ".join,
)
def test_a_question_makes_no_ledger(folder: Path, arguments: tuple[str, ...]) -> None:
    """Empty figures, exit code 0, and the folder as empty as before."""
    code, out, _ = program(*arguments, "--json")
    assert code == 0
    assert json.loads(out).get("exists", False) is False
    assert list(folder.iterdir()) == []


def test_that_there_is_no_ledger_is_said(folder: Path) -> None:
    """A person learns where it was looked for; standard output keeps to the figures."""
    code, out, err = program("ledger", "check")
    assert code == 0
    assert "no ledger yet at" in err
    assert "ledger.db" in err
    assert "no ledger yet" not in out


def test_earmark_home_names_the_folder_of_the_ledger(folder: Path) -> None:
    """EARMARK_HOME, unless --ledger names a file."""
    environment = {"EARMARK_HOME": str(folder / "home")}
    code, _, _ = program("budget", "set", "5", "--per", "day", env=environment)
    assert code == 0
    assert (folder / "home" / "ledger.db").is_file()
    code, out, _ = program("budget", "show", "--json", "--ledger", "x.db", env=environment)
    assert json.loads(out)["exists"] is False


def test_a_reader_that_leaves_early_changes_nothing(folder: Path, past: Path) -> None:
    """``earmark ledger lines | head -0``: no traceback, no noise, exit code 0."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, _, err = program("ledger", "lines", "--json", stdout=writing)
    finally:
        os.close(writing)
    assert (code, err) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_said(folder: Path, past: Past) -> None:
    """Standard output that can't be written is not passed over in silence."""
    with Path("/dev/full").open("wb") as full:
        code, _, err = program("ledger", "lines", stdout=full)
    assert code == 2
    assert "No space left" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "LANG": "C"}],
    ids=str,
)
def test_output_is_utf_8_whatever_the_code_page(folder: Path, environment: dict[str, str]) -> None:
    """A scope in any script is written as it is, in tables and in JSON."""
    assert program("budget", "set", "5", "--scope", "資料/réponse", env=environment)[0] == 0
    _, table, _ = program("budget", "show", env=environment)
    assert "資料/réponse" in table
    _, document, _ = program("budget", "show", "--json", env=environment)
    assert "資料/réponse" in {cap["scope"] for cap in json.loads(document)["caps"]}


def test_a_table_in_a_pipe_is_plain_and_whole(folder: Path) -> None:
    """No colours, no frames, and nothing cut at eighty columns."""
    scope = "a" * 150
    program("budget", "set", "5", "--scope", scope)
    _, out, _ = program("budget", "show", env={"COLUMNS": "40"})
    assert scope in out
    assert "\x1b" not in out
    assert not {"│", "─", "…"} & set(out)


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What a person sees."""
    import pty

    above, below = pty.openpty()
    process = start(
        *arguments, stdout=below, env={"TERM": "xterm-256color", "COLUMNS": "160", **environment}
    )
    os.close(below)
    shown = b""
    try:
        while part := os.read(above, 65536):
            shown += part
    except OSError:  # Linux says EIO when the last writer has gone
        pass
    os.close(above)
    code, _, err = finish(process)
    assert (code, err) == (0, "")
    return shown.decode("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_a_terminal_gets_a_drawn_table(folder: Path) -> None:
    """Frames on a terminal, and letters that stand out."""
    program("budget", "set", "5", "--scope", "app")
    text = on_a_terminal("budget", "show")
    assert "─" in text
    assert "app" in text
    assert "\x1b[1m" in text


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}], ids=["colour", "NO_COLOR"])
def test_no_color_is_honoured(folder: Path, environment: dict[str, str]) -> None:
    """Colours on a terminal, and none where NO_COLOR asks for none."""
    colours = re.search(r"\x1b\[(\d+;)*3\d", on_a_terminal("--help", **environment))
    assert (colours is None) is bool(environment)


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX")
def test_ctrl_c_ends_with_130(folder: Path) -> None:
    """An interrupted command says so in a word and leaves with 130."""
    pipe = folder / "pipe.toml"
    os.mkfifo(pipe)
    process = start("budget", "check", "--file", str(pipe))
    # Opening waits until the program reads: from then on it is in the middle of its work.
    with pipe.open("wb"):
        process.send_signal(signal.SIGINT)
        code, out, err = finish(process)
    assert (code, out) == (130, "")
    assert err == "earmark: interrupted\n"


def a_decline() -> BudgetExceeded:
    """A decline as a ledger makes it."""
    with Ledger(caps=[Cap("0", scope="a")]) as ledger, pytest.raises(BudgetExceeded) as caught:
        ledger.hold(ledger.request(1, scope="a"))
    return caught.value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (a_decline, Exit.CAP),
        (lambda: SpendLimit("the provider's limit is reached"), Exit.SPEND_LIMIT),
        (lambda: ConfigError("two runs of one name"), Exit.MISTAKE),
        (lambda: FileNotFoundError(2, "No such file or directory", "x"), Exit.MISTAKE),
        (KeyboardInterrupt, Exit.INTERRUPTED),
        (lambda: RuntimeError("a bug"), Exit.FAULT),
    ],
)
def test_what_a_command_raises_decides_its_code(
    error: object, code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cap, the provider's limit, a mistake, Ctrl-C and a bug are told apart, in JSON as well."""
    output.forget()
    with pytest.raises(BaseException) as caught:
        raise error()  # type: ignore[operator]
    assert code_of(caught.value) is code
    assert report_failure(caught.value, as_json=True) == code
    said = capsys.readouterr()
    assert json.loads(said.out)["exit_code"] == code
    assert ("Traceback" in said.err) is (code is Exit.FAULT)
