"""``earmark prices``: what one token of each class costs, for every model."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earmark import output
from earmark.doors import ConfigOption, JsonOption, PricesOption, book_of, moment, settings_of

if TYPE_CHECKING:
    from budgets.prices import ModelPrices
    from budgets.rates import Rates, Scale

app = typer.Typer(help="Show what models cost.")

_CLASSES = ("input", "write_5m", "write_1h", "read", "output")


@app.command()
def prices(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Only this model, by any of its names.")
    ] = None,
    *,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="DAY", help="Prices of this day (UTC); today if left out."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Retired models too.")] = False,
    prices: PricesOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Prices in dollars per million tokens. Retired models keep theirs; a model without one is declined."""
    book = book_of(prices, settings_of(config))
    when = moment(at, "UTC", option="--at") or datetime.now(UTC)
    known = book.models(when)
    if model is not None:
        wanted = book.resolve(model)
        found = [each for each in known if each.id == wanted]
        if not found:
            book.rates(model, when)  # says why it has no price on this day
    else:
        found = [each for each in known if every or json or _serves(each, when)]
    if json:
        document = {"at": output.instant(when), "models": [_as_json(each, when) for each in found]}
        output.print_json(document)
    else:
        _people(found)
        hidden = len(known) - len(found)
        if model is None and hidden:
            output.say(f"{hidden} retired models are left out; --all shows them")


def _serves(model: ModelPrices, when: datetime) -> bool:
    return model.retired_on is None or when.date() < model.retired_on


def _as_json(model: ModelPrices, when: datetime) -> dict[str, Any]:
    card = model.card
    return {
        "id": model.id,
        "name": model.name,
        "context_window": model.context_window,
        "cache_minimum": model.cache_minimum,
        "standard": _scale_json(card.standard),
        "batch": _scale_json(card.batch),
        "fast": None if card.fast is None else _scale_json(card.fast),
        "serves": _serves(model, when),
        "retired_on": model.retired_on,
        "retired_exactly": model.retired_exactly,
        "retires_on": model.retires_on,
        "source": model.source,
    }


def _scale_json(scale: Scale) -> dict[str, Any]:
    return {
        **_rates_json(scale.base),
        "tiers": [{"over_prompt_tokens": t.over, **_rates_json(t.rates)} for t in scale.tiers],
    }


def _rates_json(rates: Rates) -> dict[str, Any]:
    document: dict[str, Any] = {f"{name}_usd_per_mtok": _mtok(rates, name) for name in _CLASSES}
    document["web_search_usd"] = output.usd(rates.web_search_nanos)
    return document


def _mtok(rates: Rates, name: str) -> str:
    """Dollars per million tokens: a pico-dollar per token is a millionth of that."""
    value = Decimal(getattr(rates, name)).scaleb(-6).normalize()
    whole = value.quantize(Decimal("0.01"))
    return f"{whole if whole == value else value:f}"


def _people(models: list[ModelPrices]) -> None:
    columns = (
        "input",
        "5m write",
        "1h write",
        "read",
        "output",
        "search",
        "context",
        "cached from",
    )
    rows: list[tuple[object, ...]] = []
    for model in models:
        for title, scale in _scales(model):
            base = title == "standard"
            context = (f"{model.context_window:,}", f"{model.cache_minimum:,}")
            rows.append(
                (
                    model.id if base else "",
                    title,
                    *(_mtok(scale, name) for name in _CLASSES),
                    output.usd(scale.web_search_nanos) if base else "",
                    *(context if base else ("", "")),
                    _fate(model) if base else "",
                    model.source if base else "",
                )
            )
    output.print_table(
        ("model", "", *(output.right(title) for title in columns), "retired", "source"), rows
    )
    output.say("Dollars per million tokens; a search in dollars; context and prefixes in tokens.")


def _scales(model: ModelPrices) -> list[tuple[str, Rates]]:
    card = model.card
    named = [("", card.standard), ("batch", card.batch)]
    if card.fast is not None:
        named.append(("fast", card.fast))
    found = []
    for title, scale in named:
        found.append((title or "standard", scale.base))
        found.extend((f"{title} over {tier.over:,}".strip(), tier.rates) for tier in scale.tiers)
    return found


def _fate(model: ModelPrices) -> str:
    if model.retired_on is not None:
        word = "" if model.retired_exactly else "by "
        return f"{word}{model.retired_on}"
    return f"from {model.retires_on}" if model.retires_on else ""
