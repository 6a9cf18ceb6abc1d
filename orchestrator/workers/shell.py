"""A worker that is any other program: the task on its standard input, its end judged by what it leaves behind.

When: a command line tool does the work, whether it calls models or not. It gets a lease of the run's gateway in
``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY``, so that what it spends is under the same caps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budgets.scopes import scope
from orchestrator.errors import ConfigError
from orchestrator.performer import Prompt
from orchestrator.run import Run

from .environment import check_environment
from .leases import Leases
from .report import WorkerResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellWorker:
    """What a worker is; it keeps no state and may run many times at once.

    Attributes:
        name: part of its scope and of every report.
        command: the program and its arguments; no shell reads them.
        cwd: the folder that it works in; it must exist.
        verifier: a command that is run after it, in the same folder: exit code 0 means that the work is good,
            whatever the program's own exit code was.
        check: takes the program's standard output and returns its verdict: what is wrong, None if nothing is; may
            be async.
        cap: dollars that this worker may spend in a run, ever; None sets none of its own.
        env: further variables of its environment.
        pass_env: names of our variables that are passed on to it, secrets among them.
        timeout_s: seconds for all of its work, the verifier included; None is no limit.
        stall_s: seconds without output and without a file written in its folder, else ``stalled``; None is no limit.
        memory_mb: resident MiB of all its processes together; None is no limit.
        text_chars: characters of its standard output that are kept as its answer; of more, the end.
        gateway: who lends it its right to spend, in place of the run's own gateway.

    Besides, its environment says ``EARMARK_RUN``, ``EARMARK_WORKER``, ``EARMARK_UNIT`` and ``EARMARK_SCOPE``. All of
    its output is written to a file beside the run's journal, ``workers/<name>-<attempt>.log``.

    Raises:
        ConfigError, InvalidScope, InvalidAmount: something here can't be used.
    """

    name: str
    command: Sequence[str]
    cwd: Path | str
    verifier: Sequence[str] = ()
    check: Callable[[str], Any] | None = None
    cap: object = None
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: Sequence[str] = ()
    timeout_s: float | None = 3600.0
    stall_s: float | None = 600.0
    memory_mb: int | None = 4096
    text_chars: int = 200_000
    gateway: Leases | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for what, command in (("command", self.command), ("verifier", self.verifier)):
            if isinstance(command, str) or (what == "command" and not command):
                raise ConfigError(
                    f"worker {self.name}: its {what} must be a list of words, such as ['make', 'test']"
                )
        object.__setattr__(self, "cwd", Path(self.cwd).absolute())
        if not Path(self.cwd).is_dir():
            raise ConfigError(f"worker {self.name}: its folder {self.cwd} does not exist")
        limits = (self.timeout_s, self.stall_s, self.memory_mb, self.text_chars)
        if any(one is not None and one <= 0 for one in limits):
            raise ConfigError(
                f"worker {self.name}: timeout_s, stall_s, memory_mb and text_chars must be more than 0"
            )
        check_environment(self.name, self.env, self.pass_env)
        scope(self.name, self.cap)  # says now, not at the first call, that they can't be used

    def program(self, command: Sequence[str]) -> list[str]:
        """A command with its program as a path, which may be relative to the worker's folder.

        Raises:
            ConfigError: there is no such program.
        """
        first, *rest = command
        beside = Path(self.cwd) / first
        found = str(beside) if "/" in first and beside.is_file() else shutil.which(first)
        if found is None:
            raise ConfigError(
                f"worker {self.name}: there is no program {first!r}; give a path, or install it"
            )
        return [found, *rest]

    async def run(
        self,
        run: Run,
        prompt: Prompt,
        *,
        unit: str = "",
        keep: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> WorkerResult:
        """Do the work. Failures are outcomes of the result; nothing is raised but cancellation.

        Args:
            run: whose caps, gateway and journal are used.
            prompt: the task, for its standard input: text, or content blocks (then as JSON).
            unit: what it is about, for the journal and the ledger's lines.
            keep: what of each answer the ledger should keep; see ``context.CallContext``.

        Raises:
            CancelledError: nothing of it is alive any more.
        """
        from .shell_attempt import ShellAttempt  # only where a worker runs

        return await ShellAttempt(self, run, unit=unit, keep=keep).carry_out(prompt)
