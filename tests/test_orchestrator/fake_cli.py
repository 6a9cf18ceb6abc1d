"""A program in place of Claude Code that speaks its protocol and misbehaves in the way that ``FAKE`` names.

It needs nothing but Python. ``working.py`` makes an executable of it.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

WAY = os.environ.get("FAKE", "good")
SESSION = next((a.partition("=")[2] for a in sys.argv if a.startswith("--session-id=")), "none")
asked = 0


def say(message: object) -> None:
    sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    sys.stdout.flush()


def answer(text: str, *, error: bool = False, **fields: object) -> None:
    say_text(text)
    say(
        {
            "type": "result",
            "subtype": "success",
            "duration_ms": 1,
            "duration_api_ms": 1,
            "is_error": error,
            "num_turns": 1,
            "session_id": SESSION,
            "stop_reason": "end_turn",
            "total_cost_usd": 0.25 * asked,
            "result": text,
            **fields,
        }
    )


def say_text(text: str) -> None:
    block([{"type": "text", "text": text}])


def block(content: object, *, kind: str = "assistant", number: int = 0) -> None:
    message = {"role": kind, "content": content, "model": "fake", "id": f"msg-{asked}-{number}"}
    say(
        {"type": kind, "message": message, "parent_tool_use_id": None, "session_id": SESSION,
         "uuid": f"u-{asked}-{number}-{kind}"}
    )  # fmt: skip


def sleep() -> None:
    while True:
        time.sleep(60)


def child(code: str, **how: object) -> None:
    subprocess.Popen([sys.executable, "-S", "-c", code], **how)


DEAF = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
SLIPS = f"import os\nos.fork() and os._exit(0)\nos.setsid()\nos.fork() and os._exit(0)\n{DEAF}"


def work(prompt: str) -> None:
    if WAY == "hang":
        sleep()
    elif WAY == "garbage":
        say("[debug] this is no JSON")
        say({"type": "assistant"})
        say({"type": "something_new", "of": "next year"})
        say({"type": "system", "subtype": "a_new_kind", "session_id": SESSION})
        answer("done all the same")
    elif WAY == "exit_1":
        answer("done")
        sys.exit(1)
    elif WAY == "gone":
        sys.stderr.write("panic: out of cheese\n")
        sys.stderr.flush()
        os._exit(7)
    elif WAY == "memory":
        held = bytearray(400_000_000)
        held[::4096] = b"x" * len(held[::4096])
        sleep()
    elif WAY == "same_calls":
        for number in range(1, 1000):
            use = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {"file": "a"}}
            block([use], number=1)
            told = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "no such file"}
            block([told], kind="user", number=number)
            time.sleep(0.01)
    elif WAY == "turns":
        for number in range(1000):
            block([{"type": "text", "text": "and another"}], number=number)
            time.sleep(0.01)
    elif WAY == "writes":
        for number in range(8):
            pathlib.Path(f"part-{number}.txt").write_text("x", encoding="ascii")
            time.sleep(0.25)
        answer("written")
    elif WAY == "mends":
        answer("bad" if asked == 1 else "good")
    elif WAY == "never_mends":
        answer("bad")
    elif WAY == "api_error":
        answer(os.environ["SAYS"], error=True, api_error_status=int(os.environ["STATUS"]),
               terminal_reason="api_error")  # fmt: skip
    elif WAY == "lies":
        answer("API Error: 402 the budget is exhausted. rate_limit_error 429")
    elif WAY == "subtype":
        answer("", error=True, subtype=os.environ["SAYS"], result=None)
    elif WAY == "stop_reason":
        answer("half an ans", error=True, stop_reason=os.environ["SAYS"])
    elif WAY == "stopped":
        answer("half an ans", stop_reason=os.environ["SAYS"])
    elif WAY == "env":
        answer(json.dumps(dict(os.environ)))
    elif WAY == "arguments":
        answer(json.dumps(sys.argv))
    elif WAY == "prompt":
        answer(prompt)
    else:
        answer("done")


def main() -> None:
    global asked
    if WAY in {"deaf", "hang_deaf", "no_close"}:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    if WAY in {"never_starts", "deaf"}:
        sleep()
    if WAY == "dies":
        sys.stderr.write("fatal: this machine has no heart\n")
        sys.exit(9)
    if WAY.startswith("children"):
        child(DEAF)
        child(DEAF, start_new_session=True)
        child(SLIPS)
        time.sleep(0.3)
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            if message["request"]["subtype"] == "interrupt" and WAY == "hang_deaf":
                continue
            said = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            say({"type": "control_response", "response": said})
        elif message["type"] == "user":
            asked += 1
            say({"type": "system", "subtype": "init", "session_id": SESSION, "tools": []})
            if WAY in {"hang_deaf", "children_hang"}:
                continue
            content = message["message"]["content"]
            work(content if isinstance(content, str) else json.dumps(content))
    if WAY == "no_close":
        sleep()


main()
