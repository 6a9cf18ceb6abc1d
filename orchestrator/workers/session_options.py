"""Options of an Agent SDK session: what a worker is, as the SDK takes it, isolated from the machine it runs on."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError

from .launching import home

#: What every worker's program is told. See the facts of the CLI: one variable silences all traffic of its own; without
#: tasks in the background there is one result for one prompt; an answer of 400 is not asked for again without
#: this beta and that; a stream that fails is not asked for once more without a stream.
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
}
#: Fields of the SDK's options that are the worker's own, or ours.
_OURS = frozenset(
    {
        "agents", "allowed_tools", "cli_path", "cwd", "env", "max_budget_usd", "max_turns", "mcp_servers",
        "model", "output_format", "permission_mode", "resume", "session_id", "session_store",
        "setting_sources", "stderr", "strict_mcp_config", "tools", "continue_conversation",
    }
)  # fmt: skip
PERMISSION_MODES = ("default", "acceptEdits", "bypassPermissions", "plan", "dontAsk", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subagent:
    """Whom a worker may give parts of its task to, inside its own session.

    Attributes:
        description: when the worker should use it.
        prompt: its system prompt.
        tools: names of tools; none named are all of the worker's.
        model: a model id; the worker's by default.
        max_turns: model calls at most; None is no limit of its own.
    """

    description: str
    prompt: str
    tools: Sequence[str] = ()
    model: str | None = None
    max_turns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a session keeps its conversation, for going on with it.

    Attributes:
        session: its id.
        folder: its own configuration folder.
        is_resumed: it goes on with an earlier conversation.
    """

    session: str
    folder: Path
    is_resumed: bool = False

    @property
    def _record(self) -> Path:
        return self.folder / "earmark.json"

    @property
    def total_nanos(self) -> int:
        """What the program had counted when the conversation was left: it goes on from there."""
        try:
            return int(json.loads(self._record.read_text(encoding="utf-8"))["total_nanos"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    @property
    def scratch(self) -> Path:
        """For the program's temporary files."""
        return self.folder / "scratch"

    def leave(self, total_nanos: int) -> None:
        """Keep that total and the conversation, nothing else."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._record.write_text(json.dumps({"total_nanos": total_nanos}) + "\n", encoding="utf-8")


def place_of(worker: str, resume: str | None, sessions: Path | None) -> Place:
    """The folder of a new session, or of the one to go on with.

    Args:
        worker: its name, for messages.
        resume: id of an earlier session.
        sessions: where sessions are kept; by default in this process's own folder, until it ends.

    Raises:
        ConfigError: there is no such session here.
    """
    top = (sessions or home() / "sessions").absolute()
    session = resume or str(uuid.uuid4())
    folder = top / session
    if resume is not None:
        if not _is_uuid(resume) or not folder.is_dir():
            raise ConfigError(
                f"worker {worker}: there is no session {resume!r} in {top}; sessions of another process are "
                "found again only in a folder given as sessions="
            )
    else:
        folder.mkdir(parents=True, mode=0o700)
    place = Place(session=session, folder=folder, is_resumed=resume is not None)
    place.scratch.mkdir(exist_ok=True)
    return place


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def find_cli(worker: str, given: Path | None) -> Path:
    """The program: the one given, the one that the SDK brings, or ``claude`` on the path.

    Raises:
        ConfigError: the SDK is not installed, or there is no such program.
    """
    spec = find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"worker {worker}: the Agent SDK is not installed; run pip install 'earmark[agents]'"
        )
    name = "claude.exe" if os.name == "nt" else "claude"
    bundled = Path(spec.origin).with_name("_bundled") / name
    if given is None and not bundled.is_file():
        found = shutil.which("claude")
        given = Path(found) if found else None
    path = given or bundled
    if not path.is_file():
        raise ConfigError(
            f"worker {worker}: there is no Claude Code at {path}; install it, or give cli_path"
        )
    return path.absolute()


def program_env(
    *,
    place: Place,
    base_url: str,
    key: str,
    max_tokens: int,
    given: Mapping[str, str],
) -> dict[str, str]:
    """The variables of the program, those given last but the way to the gateway."""
    return {
        **QUIET,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_tokens),
        **given,
        "CLAUDE_CONFIG_DIR": str(place.folder),
        "CLAUDE_CODE_TMPDIR": str(place.scratch),
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": key,
    }


def root_env(permission_mode: str) -> dict[str, str]:
    """As root the program takes ``bypassPermissions`` only where it is told that it runs in a sandbox."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return {"IS_SANDBOX": "1"} if is_root and permission_mode == "bypassPermissions" else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of a session.

    Attributes:
        base: the program's own tools that there are.
        allowed: rules that are approved in advance.
    """

    base: tuple[str, ...]
    allowed: tuple[str, ...] = field(default=())


def toolbox(
    named: Sequence[str],
    own: Mapping[str, str],
    agents: Mapping[str, Subagent],
    allow: Sequence[str],
) -> Toolbox:
    """Which tools there are, and which may be used unasked: those of ours, and giving work to subagents.

    Args:
        named: names of the program's own tools.
        own: the names of ours as the program has them, by their own.
        agents: subagents; what they need is there for all, since they get no others.
        allow: further rules.
    """
    ours = {*own, *own.values()}
    needed = [tool for agent in agents.values() for tool in agent.tools if tool not in ours]
    delegating = ["Agent"] if agents else []
    return Toolbox(
        base=tuple(dict.fromkeys([*named, *needed, *delegating])),
        allowed=tuple(dict.fromkeys([*allow, *own.values(), *delegating])),
    )


def system_of(system: str, folder: Path) -> Any:
    """A system prompt as a file: an argument of a program can't be long, and is seen by everybody."""
    if not system:
        return None
    path = folder / "system.md"
    path.write_text(system, encoding="utf-8")
    return {"type": "file", "path": str(path)}


def sdk_agents(agents: Mapping[str, Subagent], own: Mapping[str, str]) -> dict[str, Any] | None:
    """Subagents as the SDK has them.

    Args:
        own: the names of our tools, as the program has them, by their own.
    """
    from claude_agent_sdk import AgentDefinition  # the extra

    if not agents:
        return None
    return {
        name: AgentDefinition(
            description=one.description,
            prompt=one.prompt,
            tools=[own.get(tool, tool) for tool in one.tools] or None,
            model=one.model,
            maxTurns=one.max_turns,
        )
        for name, one in agents.items()
    }


def check_extra(worker: str, extra: Mapping[str, Any]) -> None:
    """Say which further options can't be given.

    Raises:
        ConfigError: one that is the worker's own.
    """
    taken = sorted(_OURS & extra.keys())
    if taken:
        raise ConfigError(
            f"worker {worker}: the option {taken[0]} is set by the worker itself; leave it out of options"
        )
