"""From an answer to what is billed and to the usage block that reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .api_errors import ApiError
from .cache import CachePlan
from .catalog import Counts, ModelSpec, Terms, find, price
from .model import Answer
from .request import MessageRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one request used. ``counts`` is the top level; ``extra`` is inference beside it.

    Attributes:
        spec: the model that served.
        model: its name in the response.
        counts: input side by class, and all of the output.
        extra: iterations that the top level doesn't include: their type, model and counts.
        terms: what multiplies token prices.
        geo: ``inference_geo`` as reported.
        thinking, web_searches: as reported.
        billed: False if nothing is charged.
    """

    spec: ModelSpec
    model: str
    counts: Counts
    extra: tuple[tuple[str, ModelSpec, Counts], ...]
    terms: Terms
    geo: str
    thinking: int
    web_searches: int
    billed: bool

    def with_output(self, tokens: int) -> Account:
        """The same request, cut after this much output."""
        counts = Counts(
            input=self.counts.input,
            write_5m=self.counts.write_5m,
            write_1h=self.counts.write_1h,
            read=self.counts.read,
            output=tokens,
        )
        return Account(
            spec=self.spec,
            model=self.model,
            counts=counts,
            extra=self.extra,
            terms=self.terms,
            geo=self.geo,
            thinking=min(self.thinking, tokens),
            web_searches=self.web_searches,
            billed=self.billed,
        )

    @property
    def total(self) -> Counts:
        """Tokens of all inferences together."""
        every = [self.counts, *(counts for _, _, counts in self.extra)]
        return Counts(
            input=sum(counts.input for counts in every),
            write_5m=sum(counts.write_5m for counts in every),
            write_1h=sum(counts.write_1h for counts in every),
            read=sum(counts.read for counts in every),
            output=sum(counts.output for counts in every),
        )

    @property
    def nanos(self) -> int:
        """The charge in nano-dollars."""
        if not self.billed:
            return 0
        parts = [(self.spec, self.counts), *((spec, counts) for _, spec, counts in self.extra)]
        return price(parts, self.terms, web_searches=self.web_searches)


def account_for(
    request: MessageRequest,
    plan: CachePlan,
    answer: Answer,
    *,
    batch: bool = False,
    other_model: str | None = None,
) -> Account:
    """Put together what a request used.

    Args:
        request, plan, answer: the request, what it reads and writes of the cache, and its answer.
        batch: an item of a batch, at half the token price.
        other_model: a model that served instead of the one asked for.

    Raises:
        ApiError: 400 for an advisor or other model that doesn't exist.
    """
    spec = request.spec if other_model is None else _known(other_model)
    counts = Counts(
        input=plan.input + answer.extra_input,
        write_5m=plan.write_5m,
        write_1h=plan.write_1h,
        read=plan.read,
        output=answer.output_tokens,
    )
    extra = []
    directives = request.directives
    if directives.compaction is not None:
        read, written = directives.compaction
        extra.append(("compaction", spec, Counts(input=read, output=written)))
    if directives.advisor is not None:
        advisor, read, written = directives.advisor
        extra.append(("advisor_message", _known(advisor), Counts(input=read, output=written)))
    return Account(
        spec=spec,
        model=other_model or request.model,
        counts=counts,
        extra=tuple(extra),
        terms=Terms(batch=batch, us=request.us, fast=request.fast),
        geo=request.geo,
        thinking=answer.thinking_tokens,
        web_searches=answer.web_searches,
        billed=answer.billed,
    )


def _known(model: str) -> ModelSpec:
    spec = find(model)
    if spec is None:
        raise ApiError(400, f"simulator: there is no model {model!r} to serve or advise")
    return spec


def usage_json(account: Account, *, split: bool = True) -> dict[str, Any]:
    """The whole usage block of a message.

    Args:
        account: what was used.
        split: whether cache writes are split by lifetime.
    """
    counts = account.counts
    usage: dict[str, Any] = {
        "input_tokens": counts.input,
        "cache_creation_input_tokens": counts.write_5m + counts.write_1h,
        "cache_read_input_tokens": counts.read,
        "output_tokens": counts.output,
        "service_tier": "batch" if account.terms.batch else "standard",
        "inference_geo": account.geo,
    }
    if split:
        usage["cache_creation"] = _split_json(counts)
    if account.terms.fast:
        usage["speed"] = "fast"
    _add_details(usage, account)
    return usage


def start_usage_json(account: Account, *, split: bool = True) -> dict[str, Any]:
    """Usage at the start of a stream: the input side, and a placeholder of 1 for the output."""
    usage = usage_json(account, split=split)
    usage["output_tokens"] = 1
    for late in ("output_tokens_details", "server_tool_use", "iterations"):
        usage.pop(late, None)
    return usage


def delta_usage_json(account: Account) -> dict[str, Any]:
    """Usage at the end of a stream: cumulative, without split, tier, place or speed."""
    counts = account.counts
    usage: dict[str, Any] = {
        "input_tokens": counts.input,
        "cache_creation_input_tokens": counts.write_5m + counts.write_1h,
        "cache_read_input_tokens": counts.read,
        "output_tokens": counts.output,
    }
    _add_details(usage, account)
    return usage


def _add_details(usage: dict[str, Any], account: Account) -> None:
    if account.thinking:
        usage["output_tokens_details"] = {"thinking_tokens": account.thinking}
    if account.web_searches:
        usage["server_tool_use"] = {
            "web_search_requests": account.web_searches,
            "web_fetch_requests": 0,
        }
    if account.extra:
        own = _iteration_json("message", account.model, account.counts)
        beside = [_iteration_json(kind, spec.id, counts) for kind, spec, counts in account.extra]
        usage["iterations"] = [*beside, own]


def _iteration_json(kind: str, model: str, counts: Counts) -> dict[str, Any]:
    item: dict[str, Any] = {
        "type": kind,
        "input_tokens": counts.input,
        "output_tokens": counts.output,
        "cache_creation_input_tokens": counts.write_5m + counts.write_1h,
        "cache_read_input_tokens": counts.read,
        "cache_creation": _split_json(counts),
    }
    if kind != "compaction":
        item["model"] = model
    return item


def _split_json(counts: Counts) -> dict[str, int]:
    return {
        "ephemeral_5m_input_tokens": counts.write_5m,
        "ephemeral_1h_input_tokens": counts.write_1h,
    }


def message_json(
    message_id: str, answer: Answer, account: Account, usage: object
) -> dict[str, Any]:
    """The whole message, as a non-streaming reply or a batch result carries it."""
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": account.model,
        "content": answer.content,
        "stop_reason": answer.stop_reason,
        "stop_sequence": answer.stop_sequence,
        "stop_details": stop_details(answer),
    }
    if usage is not None:
        message["usage"] = usage
    return message


def stop_details(answer: Answer) -> dict[str, Any] | None:
    """The details of a refusal; None for any other end."""
    if answer.stop_reason != "refusal":
        return None
    return {"type": "refusal", "category": None, "explanation": "Simulated refusal."}
