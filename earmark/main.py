"""The door of the program: the table of commands, and one place where every command ends.

A command's module is imported when that command is called, never for ``--help`` of the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import output
from .exits import EPILOG, Exit
from .failures import report_failure

#: Every command: its name, the module that has it as ``app``, and its line in the help.
COMMANDS: dict[str, tuple[str, str]] = {
    "classify": (
        "earmark.commands.classify",
        "Classify every document of a folder or table under a cap.",
    ),
    "extract": ("earmark.commands.extract", "Take fields out of every document under a cap."),
    "map": ("earmark.commands.map", "Run a prompt over every document under a cap."),
    "research": (
        "earmark.commands.research",
        "Answer a question with a team, with sources, under a cap.",
    ),
    "work": ("earmark.commands.work", "Have Claude Code do a task in a folder under a cap."),
    "results": ("earmark.commands.results", "Show the rows of a run of one of these."),
    "batches": ("earmark.commands.batches", "List jobs of batches, watch, go on with, cancel one."),
    "budget": ("earmark.commands.budget", "Show, check, set and drop caps."),
    "ledger": ("earmark.commands.ledger", "Read, prove and correct the ledger."),
    "runs": ("earmark.commands.runs", "List runs and show one."),
    "report": (
        "earmark.commands.report",
        "Show where the money of a run went, or of a log of calls.",
    ),
    "estimate": ("earmark.commands.estimate", "Price a plan of agents, turns and tokens."),
    "prices": ("earmark.commands.prices", "Show what models cost."),
    "gateway": (
        "earmark.commands.gateway",
        "Serve the Anthropic API on loopback, under caps.",
    ),
    "simulate": ("earmark.commands.simulate", "Serve a stand-in for the API; nothing is spent."),
}

#: Typer's classes of mistakes on the command line, wherever this version of it keeps them.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class _Later(TyperCommand):
    """A command that is imported when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the real command."""
        return load(str(self.name)).make_context(info_name, args, parent=parent, **extra)


class _Table(TyperGroup):
    """The table of commands, without their modules."""

    def __init__(self, **fields: Any) -> None:
        fields["commands"] = {name: _Later(name, help=text) for name, (_, text) in COMMANDS.items()}
        super().__init__(**fields)


def load(name: str) -> Any:
    """The real command of a name, imported now."""
    command: Any = typer.main.get_command(import_module(COMMANDS[name][0]).app)
    command.name = name
    return command


app = typer.Typer(
    name="earmark",
    cls=_Table,
    no_args_is_help=True,
    add_completion=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.say(f"earmark {version('earmark')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run many Claude calls and agents at once under hard budget caps that are never passed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: the command line without the program's name; None takes the process's own.

    Returns:
        The exit code.
    """
    from .console import let_go, make_ready

    make_ready()
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    let_go()
    return code


def run(arguments: list[str]) -> int:
    """Run one command in this process, on its standard output and error; the exit code."""
    output.forget()
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every command ends here
        return report_failure(error, as_json=_wants_json(arguments))
    return code


def _invoke(arguments: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="earmark", standalone_mode=False)
    except _UsageError as error:
        return _usage(error, arguments)
    except typer.Abort:
        raise KeyboardInterrupt from None
    if result == Exit.INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else int(Exit.OK)


def _usage(error: Any, arguments: list[str]) -> int:
    """A mistake on the command line: typer says it in its own way."""
    error.show()
    if _wants_json(arguments):
        message = error.format_message()
        output.print_json({"error": message, "kind": "UsageError", "exit_code": int(Exit.MISTAKE)})
    return int(Exit.MISTAKE)


def _wants_json(arguments: list[str]) -> bool:
    return "--json" in arguments


if __name__ == "__main__":
    sys.exit(main())
