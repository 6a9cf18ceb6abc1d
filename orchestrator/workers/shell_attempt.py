"""One attempt of a program: its output into a log, its verifier after it, and the one outcome that it ends in."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.outcomes import Outcome
from orchestrator.performer import Prompt
from orchestrator.questions import call_async
from orchestrator.run import Run

from .attempt import Attempt, Bounds, Keep
from .environment import inherited
from .launching import HAS_SUPERVISOR, Launch, home, launch_of
from .report import WorkerResult
from .watching import Verdict, Watch

if TYPE_CHECKING:
    from .shell import ShellWorker

#: Bytes of error output, and of a verifier's, that are kept; bytes read at once; bytes of a log at most.
_TAIL_BYTES, _READ_BYTES, _LOG_BYTES = 4_000, 65_536, 50_000_000
_REASON_CHARS = 500


class _Tail:
    """The end of an output, within a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        while len(self._pieces) > 1 and self._size - len(self._pieces[0]) >= self._most:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        return b"".join(self._pieces)[-self._most :].decode("utf-8", "replace")

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][:_REASON_CHARS] if lines else ""


@dataclass(slots=True)
class _Output:
    """Where the output of one program goes: all of it into the log, within a bound, and the ends of it."""

    log: BufferedWriter
    said: _Tail
    errors: _Tail
    room: int = _LOG_BYTES

    def write(self, piece: bytes, tail: _Tail) -> None:
        tail.add(piece)
        self.log.write(piece[: self.room])
        self.room -= min(len(piece), self.room)


class ShellAttempt:
    """One attempt.

    Args:
        worker: what the worker is.
        run: whose caps, gateway and journal are used.
        unit, keep: as for ``ShellWorker.run``.
    """

    def __init__(self, worker: ShellWorker, run: Run, *, unit: str, keep: Keep) -> None:
        self._worker = worker
        self._run = run
        self._unit = unit
        self._attempt = Attempt(
            run,
            worker.name,
            cap=worker.cap,
            folder=Path(worker.cwd),
            bounds=Bounds(
                start_s=60.0,
                timeout_s=worker.timeout_s,
                stall_s=worker.stall_s,
                memory_mb=worker.memory_mb,
            ),
            lender=worker.gateway,
            unit=unit,
            keep=keep,
        )
        self._said = _Tail(worker.text_chars)
        self._errors = _Tail(_TAIL_BYTES)
        self._verified = _Tail(_TAIL_BYTES)
        self._log: Path | None = None

    async def carry_out(self, prompt: Prompt) -> WorkerResult:
        """Do the work; see ``ShellWorker.run``."""
        attempt = self._attempt

        async def work() -> Verdict:
            return await self._work(prompt)

        outcome, reason = await attempt.carry_out(
            work,
            begins={"kind": "shell", "command": Path(self._worker.command[0]).name},
            ends=lambda: {"exit_code": attempt.exit_code, "log": self._log},
        )
        text = self._said.text
        return WorkerResult(
            outcome=outcome,
            reason=reason,
            text=text,
            value=text if outcome is Outcome.OK else None,
            turns=attempt.tally.calls,
            tally=attempt.tally,
            messages=({"role": "user", "content": prompt}, {"role": "assistant", "content": text}),
            seconds=attempt.seconds,
            report=attempt.report(
                errors=self._errors.text, verified=self._verified.text, log=self._log
            ),
        )

    async def _work(self, prompt: Prompt) -> Verdict:
        worker, attempt = self._worker, self._attempt
        given = prompt if isinstance(prompt, str) else json.dumps(list(prompt), ensure_ascii=False)
        command = worker.program(worker.command)
        verifier = worker.program(worker.verifier) if worker.verifier else []
        launch = self._launch(command)
        self._log = self._log_path(launch.attempt)
        with self._log.open("ab") as log:
            ended = await self._program(
                launch, given.encode(), _Output(log, self._said, self._errors)
            )
            code = attempt.exit_code
            if ended is not None:
                return ended
            if verifier:
                return await self._verify(verifier, log)
        if code != 0:
            why = self._errors.last_line or self._said.last_line or "it said nothing"
            return Outcome.INFRA, f"it ended with exit code {code}: {why}"
        problem = ""
        if worker.check is not None:
            problem = str(await call_async(worker.check, self._said.text) or "")
        return (Outcome.INVALID, problem) if problem else (Outcome.OK, "")

    async def _verify(self, command: Sequence[str], log: BufferedWriter) -> Verdict:
        """A good result beats the exit code of the program, and the verifier says whether it is good."""
        output = _Output(log, self._verified, self._verified)
        ended = await self._program(self._launch(command), b"", output)
        if ended is not None:
            return ended[0], f"the verifier: {ended[1]}"
        code = self._attempt.exit_code
        self._attempt.write("verified", failed=code != 0 or None, exit_code=code)
        if code == 0:
            return Outcome.OK, ""
        why = self._verified.last_line or "it said nothing"
        return Outcome.INVALID, f"the verifier ended with exit code {code}: {why}"

    def _launch(self, command: Sequence[str]) -> Launch:
        worker, lease = self._worker, self._attempt.lease
        env = {
            **worker.env,
            "EARMARK_RUN": self._run.id,
            "EARMARK_WORKER": worker.name,
            "EARMARK_UNIT": self._unit,
            "EARMARK_SCOPE": self._run.here,
            "ANTHROPIC_BASE_URL": lease.base_url,
            "ANTHROPIC_API_KEY": lease.key,
        }
        return launch_of(
            command, env=env, inherit=inherited(worker.pass_env), memory_mb=worker.memory_mb
        )

    def _log_path(self, attempt: str) -> Path:
        journal = self._run.journal.path
        folder = (home() if journal is None else journal.parent) / "workers"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self._worker.name.replace('/', '-')}-{attempt}.log"

    # ---- one program --------------------------------------------------------------------------------

    async def _program(self, launch: Launch, given: bytes, output: _Output) -> Verdict | None:
        """Run one program to its end; None if it ended by itself, else why it had to."""
        attempt = self._attempt
        watch = attempt.watch(launch, lambda: None)
        owner = await attempt.supervised(self._own(launch, given, output, watch), lambda: None)
        verdict = attempt.verdict or attempt.ended_by
        if verdict is not None:
            return verdict
        if not owner.done():
            return Outcome.INFRA, "its output does not end"
        if not owner.cancelled() and (error := owner.exception()) is not None:
            return Outcome.SPAWN_FAILURE, f"it could not be started: {error}"
        if attempt.exit_code is None and attempt.pid:
            return Outcome.INFRA, "its supervisor was killed"
        if attempt.exit_code is None:
            why = output.errors.last_line or "it said nothing"
            return Outcome.SPAWN_FAILURE, f"it could not be started: {why}"
        return None

    async def _own(self, launch: Launch, given: bytes, output: _Output, watch: Watch) -> None:
        process = await asyncio.create_subprocess_exec(
            *launch.command,
            cwd=self._worker.cwd,
            env=dict(launch.full_env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        watch.started()

        async def read(stream: asyncio.StreamReader, tail: _Tail) -> None:
            while piece := await stream.read(_READ_BYTES):
                watch.heard()
                output.write(piece, tail)

        async def write(stream: asyncio.StreamWriter) -> None:
            try:
                stream.write(given)
                await stream.drain()
            except (BrokenPipeError, ConnectionResetError):
                pass  # it does not read its task to the end; what it leaves behind decides
            finally:
                stream.close()

        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if not HAS_SUPERVISOR:
            launch.tree.adopt(process.pid)
        async with asyncio.TaskGroup() as group:
            group.create_task(write(process.stdin))
            group.create_task(read(process.stdout, output.said))
            group.create_task(read(process.stderr, output.errors))
        code = await process.wait()
        if not HAS_SUPERVISOR:
            launch.tree.note_end(code)
