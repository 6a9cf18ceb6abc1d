"""The environment of a worker: what it needs to run, what was declared, and no secret of ours.

A worker of the same user can still read what that user can read; who must rule that out runs it as another user,
or in a container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence

from orchestrator.errors import ConfigError

#: What programs need of the machine, and what says nothing about us.
BASIC = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TMP",
        "TEMP", "SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "WINDIR", "APPDATA", "LOCALAPPDATA",
        "USERPROFILE", "PROGRAMDATA", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
    }
)  # fmt: skip
#: Set by whoever starts a session of the Agent SDK.
OF_THE_SDK = frozenset(
    {
        "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION", "CLAUDE_CODE_SDK_READS_SESSION_STATE",
        "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING", "PWD", "TRACEPARENT", "TRACESTATE",
    }
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: A shell ends itself when it is told to unset them.
_OF_THE_SHELL = frozenset({"UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"})
#: Names that are ours to set: the way to the gateway, and where the worker keeps its things.
RESERVED = frozenset(
    {
        "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_UNIX_SOCKET",
        "ANTHROPIC_CUSTOM_HEADERS", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX",
        "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR",
        "CLAUDE_CODE_TMPDIR",
    }
)  # fmt: skip


def inherited(declared: Sequence[str] = ()) -> frozenset[str]:
    """Names of this process's variables that a worker gets: the basic ones, the locale's, and those declared.

    Args:
        declared: names that may be passed on besides, secrets among them.
    """
    locale = {name for name in os.environ if name.startswith("LC_")}
    return frozenset({*BASIC, *locale, *declared} & os.environ.keys())


def values_of(names: Iterable[str]) -> dict[str, str]:
    """These of our variables, with their values."""
    return {name: os.environ[name] for name in names if name in os.environ}


def names_but(keep: Container[str]) -> list[str]:
    """Our variables that a shell would pass on and can unset, but these."""
    names = {name for name in os.environ if name not in keep and _NAME.fullmatch(name)}
    return sorted(names - _OF_THE_SHELL)


def check_environment(worker: str, given: Mapping[str, str], declared: Sequence[str]) -> None:
    """Say what can't be passed on.

    Raises:
        ConfigError: a name or a value that can't be a variable, or a way around the gateway.
    """
    for name in (*given, *declared):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"worker {worker}: {name!r} can't be the name of a variable")
        if name in RESERVED:
            raise ConfigError(
                f"worker {worker}: {name} is set by Earmark, so that every request is paid from its caps; "
                "leave it out"
            )
    for name, value in given.items():
        if "\0" in str(value):
            raise ConfigError(f"worker {worker}: the variable {name} holds a NUL")
