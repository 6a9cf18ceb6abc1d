"""``earmark work``: a Claude Code worker, or a team of them, over a folder, for no more than was said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark.doors import ConfigOption, JsonOption, LedgerOption, PricesOption, SimulateOption

app = typer.Typer(help="Have a worker do a task in a folder, under a cap.")


@app.command()
def work(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done.")],
    *,
    folder: Annotated[
        Path, typer.Option("--in", metavar="FOLDER", help="Where; it reads here and nowhere else.")
    ],
    agents: Annotated[
        Path | None,
        typer.Option(
            "--agents", metavar="FILE", help="Its subagents, one table each (TOML or JSON)."
        ),
    ] = None,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="USD", help="The most that it may cost; 1.5 if nothing else says."
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="It may change files in the folder.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", metavar="ID", help="Who works.")] = None,
    turns: Annotated[
        int, typer.Option("--turns", min=1, metavar="N", help="Model calls of it at most.")
    ] = 50,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, metavar="N", help="Tokens of one answer at most.")
    ] = 16_000,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="S", help="Seconds for all of it.")
    ] = 3600,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where report.md and costs.json go."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="SESSION", help="Go on with an earlier session, in its context."
        ),
    ] = None,
    simulate: SimulateOption = False,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
) -> int:
    """Do TASK with a Claude Code session in a folder, read-only unless --write is given.

    All of its requests, those of its subagents included, are held for before they leave, so that the cap holds
    whatever it does. Needs the extra `agents` of earmark (pip).
    """
    from earmark.work_job import Request, run_request

    return run_request(
        Request(
            task=task,
            folder=folder,
            agents=agents,
            cap=cap,
            write=write,
            model=model,
            turns=turns,
            max_tokens=max_tokens,
            timeout_s=timeout,
            out=out,
            resume=resume,
            simulate=simulate,
            ledger=ledger,
            config=config,
            prices=prices,
            as_json=json,
        )
    )
