"""``earmark simulate``: serve a stand-in for the API, with its own bill; nothing is spent."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from earmark import output
from earmark.doors import JsonOption
from earmark.failures import Mistake

if TYPE_CHECKING:
    from orchestrator.simulator import Faults

app = typer.Typer(help="Serve a stand-in for the API; nothing is spent.")


@app.command()
def simulate(
    *,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8787,
    rpm: Annotated[
        int | None, typer.Option("--rpm", min=1, help="Requests per minute; none: no limit.")
    ] = None,
    itpm: Annotated[
        int | None, typer.Option("--itpm", min=1, help="Uncached input tokens per minute.")
    ] = None,
    otpm: Annotated[
        int | None, typer.Option("--otpm", min=1, help="Output tokens per minute.")
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option("--concurrent", min=1, help="Messages in progress at once.")
    ] = None,
    latency_ms: Annotated[
        int, typer.Option("--latency-ms", min=0, help="Until the first byte of a message.")
    ] = 0,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            metavar="KIND=CHANCE,...",
            help="Random faults, such as overloaded=0.05,cut=0.01.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same faults.")] = 0,
    json: JsonOption = False,
) -> None:
    """Serve the Messages API on loopback until Ctrl-C: deterministic answers, limits, faults, and a bill.

    With --json one document with its address is printed as soon as it listens.
    """
    from orchestrator.simulator import Limits, serve

    def announce(line: str) -> None:
        if not json:
            output.say(line)
        elif not output.json_begun() and (url := re.search(r"https?://\S+", line)):
            output.print_json({"url": url[0], "simulated": True})
        sys.stdout.flush()

    serve(
        host,
        port,
        announce=announce,
        faults=_faults(faults, seed),
        limits=Limits(
            requests_per_minute=rpm,
            input_tokens_per_minute=itpm,
            output_tokens_per_minute=otpm,
            concurrent=concurrent,
        ),
        latency_s=latency_ms / 1000,
        seed=seed,
    )


def _faults(text: str, seed: int) -> Faults:
    from orchestrator.simulator import Faults

    rates: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        kind, _, chance = part.partition("=")
        try:
            rates[kind.strip()] = float(chance)
        except ValueError:
            raise Mistake(
                f"--faults: {part!r} is not KIND=CHANCE; write it such as overloaded=0.05"
            ) from None
    try:
        return Faults(rates=rates, seed=seed)
    except ValueError as error:
        raise Mistake(f"--faults: {error}") from error
