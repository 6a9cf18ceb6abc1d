"""A worker of the Agent SDK: a Claude Code session with tools, subagents and a cap, that ends in one outcome.

Its requests go through the gateway of the run, so that they are held for and settled like any other call. What the
program says that it cost is set beside the gateway's figure, and is never used as money.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budgets.scopes import scope
from orchestrator.agent import Output
from orchestrator.answers import Answers
from orchestrator.approvals import Approve
from orchestrator.errors import ConfigError
from orchestrator.performer import Prompt
from orchestrator.run import Run
from orchestrator.tools import Tool, tool

from .environment import check_environment
from .leases import Leases
from .report import WorkerResult
from .session_options import PERMISSION_MODES, Subagent, check_extra, find_cli, place_of

#: Looking at files: inside its folder only, unless rules allow more.
READING = ("Read", "Grep", "Glob")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSdkWorker:
    """What a worker is; it keeps no state and may run many times at once.

    Attributes:
        name: part of its scope and of every report.
        model: a model id.
        cwd: the folder that it works in; it must exist.
        system: the system prompt.
        tools: names of Claude Code's own tools (``Read``, ``Grep``, ``Edit``, ``Bash``, ...), and Python functions
            or ``Tool`` records, which are served to it from this process.
        allow: rules that are approved in advance (``Bash(git diff *)``, ``Write``). Without any it reads inside its
            folder only; with ``acceptEdits`` it writes there as well.
        agents: subagents by name.
        output: a pydantic model or a JSON schema that the answer must fit.
        check: takes the parsed output (or the text) and returns its verdict: what is wrong, None if nothing
            is; may be async, and may look at the folder.
        repairs: corrective rounds, in the session that is still open, after an answer that is ``invalid``.
        max_turns: model calls of its main loop for one prompt. Counted here as well as by the program.
        max_tokens: output tokens of one call at most, thinking included.
        permission_mode: what becomes of tools that no rule allows; ``dontAsk`` denies them.
        cap: dollars that this worker may spend in a run, ever; None sets none of its own.
        fence: dollars for the program's own budget, a second fence that must stand above the cap; by default
            twice what it could spend at its start.
        env: further variables of its environment.
        pass_env: names of our variables that are passed on to it, secrets among them.
        start_s: seconds until the program must be ready, else ``spawn_failure``.
        timeout_s: seconds for all of its work; None is no limit.
        stall_s: seconds without output and without a file written in its folder, else ``stalled``; None is no limit.
        memory_mb: resident MiB of all its processes together; None is no limit.
        same_calls: so many identical tool calls with identical results end it as ``stalled``.
        approve: asked before a function that needs approval is called, in place of the run's.
        sessions: a folder that keeps conversations for other processes to go on with; by default they last as long
            as this process.
        gateway: who lends it its right to spend, in place of the run's own gateway.
        cli_path: the program, in place of the one that the SDK brings.
        options: further fields of ``ClaudeAgentOptions`` (``effort``, ``thinking``, ``hooks``, ...).

    Raises:
        ConfigError, InvalidScope, InvalidAmount: something here can't be used.
    """

    name: str
    model: str
    cwd: Path | str
    system: str = ""
    tools: Sequence[str | Callable[..., Any] | Tool] = READING
    allow: Sequence[str] = ()
    agents: Mapping[str, Subagent] = field(default_factory=dict)
    output: Output | None = None
    check: Callable[[Any], Any] | None = None
    repairs: int = 0
    max_turns: int = 50
    max_tokens: int = 16_000
    permission_mode: str = "dontAsk"
    cap: object = None
    fence: object = None
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: Sequence[str] = ()
    start_s: float = 60.0
    timeout_s: float | None = 3600.0
    stall_s: float | None = 600.0
    memory_mb: int | None = 4096
    same_calls: int = 5
    approve: Approve | None = None
    sessions: Path | None = None
    gateway: Leases | None = field(default=None, repr=False)
    cli_path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    _answers: Answers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        made = tuple(one if isinstance(one, str) else tool(one) for one in self.tools)
        names = [one if isinstance(one, str) else one.name for one in made]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"worker {self.name}: the tool {twice} is given twice; rename one")
        object.__setattr__(self, "tools", made)
        object.__setattr__(self, "cwd", Path(self.cwd).absolute())
        if not Path(self.cwd).is_dir():
            raise ConfigError(f"worker {self.name}: its folder {self.cwd} does not exist")
        if self.permission_mode not in PERMISSION_MODES:
            known = ", ".join(PERMISSION_MODES)
            raise ConfigError(
                f"worker {self.name}: permission_mode {self.permission_mode!r} is none of {known}"
            )
        check_environment(self.name, self.env, self.pass_env)
        check_extra(self.name, self.options)
        scope(self.name, self.cap)  # says now, not at the first call, that they can't be used
        object.__setattr__(self, "_answers", Answers(self.output, None))

    def _check_numbers(self) -> None:
        if min(self.max_turns, self.max_tokens) < 1 or self.same_calls < 2 or self.repairs < 0:
            raise ConfigError(
                f"worker {self.name}: max_turns and max_tokens must be 1 or more, same_calls 2 or more, "
                "repairs 0 or more"
            )
        limits = (self.start_s, self.timeout_s, self.stall_s, self.memory_mb)
        if any(one is not None and one <= 0 for one in limits):
            raise ConfigError(
                f"worker {self.name}: start_s, timeout_s, stall_s and memory_mb must be more than 0, or None"
            )

    @property
    def functions(self) -> tuple[Tool, ...]:
        """The tools that are served from this process."""
        return tuple(one for one in self.tools if isinstance(one, Tool))

    @property
    def format(self) -> dict[str, Any] | None:
        """The schema of its answer as the SDK takes it; None for free text."""
        return self._answers.format

    def check_program(self) -> None:
        """Say now, not at the first task, that its program is not there.

        Raises:
            ConfigError: the extra is not installed, or there is no Claude Code.
        """
        find_cli(self.name, self.cli_path)

    def check_session(self, session: str) -> None:
        """Say now that there is no such session to go on with.

        Raises:
            ConfigError: there is none.
        """
        place_of(self.name, session, self.sessions)

    def read(self, text: str, structured: Any) -> tuple[Any, str]:
        """An answer as its value, and what is wrong with it (empty if nothing is)."""
        if self.output is not None and structured is not None:
            text = json.dumps(structured, ensure_ascii=False)
        return self._answers.read(text)

    async def run(
        self,
        run: Run,
        prompt: Prompt,
        *,
        unit: str = "",
        keep: Callable[[Mapping[str, Any]], Any] | None = None,
        resume: str | None = None,
    ) -> WorkerResult:
        """Do the work. Failures are outcomes of the result; nothing is raised but cancellation.

        Args:
            run: whose caps, gateway and journal are used.
            prompt: the task: text, or content blocks.
            unit: what it is about, for the journal and the ledger's lines.
            keep: what of each answer the ledger should keep; see ``context.CallContext``.
            resume: id of an earlier session (``result.report.session``) to go on with, in its context.

        Raises:
            CancelledError: nothing of it is alive any more.
        """
        from .sdk_attempt import SdkAttempt  # only where a worker runs

        return await SdkAttempt(self, run, unit=unit, keep=keep).carry_out(prompt, resume)
