"""``earmark gateway``: the Anthropic API on loopback under caps, for programs that know nothing of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from earmark import output
from earmark.doors import ConfigOption, JsonOption, LedgerOption, ZoneOption
from earmark.failures import Mistake

app = typer.Typer(help="Serve the Anthropic API on loopback, under caps.")
token_app = typer.Typer(help="Make, list and take back the keys of clients.", no_args_is_help=True)
app.add_typer(token_app, name="token")

CapDay = Annotated[
    str | None, typer.Option("--cap-day", metavar="USD", help="Dollars a day.", show_default=False)
]
CapWeek = Annotated[
    str | None,
    typer.Option("--cap-week", metavar="USD", help="Dollars a week.", show_default=False),
]
CapMonth = Annotated[
    str | None,
    typer.Option("--cap-month", metavar="USD", help="Dollars a month.", show_default=False),
]
CapEver = Annotated[
    str | None,
    typer.Option("--cap", metavar="USD", help="Dollars, for ever.", show_default=False),
]


@app.callback(invoke_without_command=True)
def gateway(
    ctx: typer.Context,
    *,
    cap_day: CapDay = None,
    cap_week: CapWeek = None,
    cap_month: CapMonth = None,
    cap: CapEver = None,
    tz: ZoneOption = None,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; beyond loopback tokens are needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8788,
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream",
            metavar="URL",
            help="The API; else $ANTHROPIC_BASE_URL, else Anthropic's.",
            show_default=False,
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", min=1, help="The most calls at once; 256.", show_default=False),
    ] = None,
    search_tokens: Annotated[
        int | None,
        typer.Option(
            "--search-tokens",
            min=1,
            help="Input tokens that one web search brings in at most; 25000.",
            show_default=False,
        ),
    ] = None,
    fetch_tokens: Annotated[
        int | None,
        typer.Option(
            "--fetch-tokens",
            min=1,
            help="The same for one web fetch; none: by the tool's own limit.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        int, typer.Option("--wait", min=0, help="Seconds to wait for held money at most.")
    ] = 240,
    files: Annotated[
        bool, typer.Option("--files", help="Pass the Files API on; all clients share its files.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="In front of the built-in stand-in; no key.")
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="A price file.", show_default=False),
    ] = None,
    ledger: LedgerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the Anthropic API on loopback until Ctrl-C; every billable request is held for under the caps.

    Point ANTHROPIC_BASE_URL of a program here; the real key stays with the gateway. Without tokens any
    program on this machine may use it, in the scope ``gateway``.
    """
    if ctx.invoked_subcommand is not None:
        return
    from earmark.gateway_job import Request, serve_request

    serve_request(
        Request(
            amounts={"day": cap_day, "week": cap_week, "month": cap_month, None: cap},
            tz=tz,
            host=host,
            port=port,
            upstream=upstream,
            width=width,
            search_tokens=search_tokens,
            fetch_tokens=fetch_tokens,
            wait_s=wait,
            files=files,
            simulate=simulate,
            prices=prices,
            ledger=ledger,
            config=config,
            as_json=json,
        )
    )


@token_app.command("new")
def new(
    *,
    scope: Annotated[
        str, typer.Option("--scope", metavar="PATH", help="Its client's scope, as team/alice.")
    ],
    cap_day: CapDay = None,
    cap_week: CapWeek = None,
    cap_month: CapMonth = None,
    cap: CapEver = None,
    tz: ZoneOption = None,
    ends: Annotated[
        str | None,
        typer.Option("--ends", metavar="TIME", help="When it ends (ISO 8601).", show_default=False),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="May see the figures of all scopes.")
    ] = False,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key for one client, and set caps on its scope. The key is shown once and kept nowhere."""
    from datetime import UTC, datetime

    from budgets.settings import ledger_path
    from earmark.doors import ledger_to_write, moment
    from earmark.gateway_job import caps_on, check_not_all, out_of_reach
    from orchestrator.gateway.tokens import Tokens

    until = moment(ends, tz or "UTC", option="--ends", is_end=True)
    if until is not None and until <= datetime.now(UTC):
        raise Mistake(f"--ends: {ends} is over already; name a time to come")
    amounts = {"day": cap_day, "week": cap_week, "month": cap_month, None: cap}
    caps = caps_on(scope, amounts, tz=tz, owner="earmark gateway token")
    check_not_all(scope, caps)
    tokens = Tokens.beside(ledger_path(ledger))
    # The key is good once its caps are set, and no cap is set for a key that can't be made.
    with (
        tokens.making(scope, ends=until, is_admin=admin) as (token, key),
        ledger_to_write(ledger, create=True) as opened,
    ):
        around = [entry.cap for entry in opened.ledger.caps() if not entry.fallback]
        for one in caps:
            opened.ledger.set_cap(one)
    for sentence in out_of_reach(caps, around):
        output.remark(sentence)
    if json:
        output.print_json(
            {
                "id": token.id,
                "key": key,
                "scope": token.scope,
                "ends": token.ends_at,
                "admin": admin,
                "caps": [str(one) for one in caps],
            }
        )
        return
    output.say(f"Token {token.id} for {token.scope}; this key is shown once:\n\n  {key}\n")
    for one in caps:
        output.say(f"  {one}")
    output.say("  export ANTHROPIC_BASE_URL=<the gateway's address> ANTHROPIC_API_KEY=<this key>")


@token_app.command("list")
def list_tokens(*, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """List the tokens of a ledger; their keys are not kept."""
    from budgets.settings import ledger_path
    from orchestrator.gateway.tokens import Tokens

    tokens = Tokens.beside(ledger_path(ledger)).all()
    if json:
        rows = [
            {
                "id": one.id,
                "scope": one.scope,
                "made": one.made_at,
                "ends": one.ends_at,
                "admin": one.is_admin,
            }
            for one in tokens
        ]
        output.print_json({"tokens": rows})
        return
    if not tokens:
        output.say("No tokens: any program on this machine may use the gateway.")
    for one in tokens:
        until = f", until {one.ends_at}" if one.ends_at else ""
        admin = ", may see all figures" if one.is_admin else ""
        output.say(f"{one.id}  {one.scope}  made {one.made_at}{until}{admin}")


@token_app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, as the list shows it.")],
    *,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Take a token back; a running gateway shuts its client out within a second. Caps stay as they are."""
    from budgets.settings import ledger_path
    from orchestrator.gateway.tokens import Tokens

    gone = Tokens.beside(ledger_path(ledger)).revoke(token)
    if json:
        output.print_json({"id": gone.id, "scope": gone.scope, "revoked": True})
    else:
        output.say(f"Token {gone.id} of {gone.scope} is taken back.")
