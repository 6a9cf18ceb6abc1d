"""Requests: the body of a Messages request read as a shape, fixed so that it can't cost more.

What has no bound is declined by name, unless the caller's ``Allowances`` give one. Settings that
the request leaves open and that change its price come back as ``changes``, to be made before it is
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from budgets.errors import InvalidInput, Unbounded, UnknownPrice
from budgets.shape import Geo, Shape, Speed, Tier, Ttl
from budgets.usage import Usage

from .allowances import Allowances
from .caching import longer, longest_ttl
from .fields import COUNTABLE_FIELDS, OUTPUT_CONFIG_FIELDS, PLAIN_FIELDS, RULED_FIELDS
from .prompts import Content, encode, read_content, text_tokens, unbounded_upload
from .rounds import LARGEST_WINDOW, Plan, compacts, shape_of, totals
from .ruled import read_compaction, read_container, read_hops
from .tools import NO_TOOLS, ToolTerms, fill_uses, read_mcp_servers, read_tools

VOUCHES_FOR_NOTHING = Allowances()

#: The token counter estimates: 10 % and a little on top of what it says.
_COUNT_MARGIN_TOKENS = 256
#: Likely tokens of what is no text, for the rate gate only.
_LIKELY_IMAGE = 1_600
_LIKELY_REMOTE = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the server holds of a message thread, as far as it matters for money.

    Attributes:
        tokens: the most tokens of the conversation up to the last reply; None if that is not known.
        tools: tools of the thread that are not run by the caller.
        cache_ttl: the longest cache lifetime that any of its requests asked for.
    """

    tokens: int | None
    tools: tuple[Mapping[str, Any], ...] = ()
    cache_ttl: Ttl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A request as money sees it.

    Attributes:
        shape: its upper limits, by bytes.
        changes: top-level fields to set in the body before it is sent; the hold binds only with
            them.
        needs_count: its bytes bound nothing (images, PDFs), so the shape holds a whole context
            window; the token counter gives a real figure.
        estimate_input: likely input tokens, for the rate gate; not a bound.
        model, stream, max_tokens: as they will be sent.
    """

    shape: Shape
    changes: dict[str, Any]
    needs_count: bool
    estimate_input: int
    model: str
    stream: bool
    max_tokens: int
    _body: Mapping[str, Any]
    _plan: Plan
    _held: tuple[Mapping[str, Any], ...]
    _countable: bool

    @property
    def countable(self) -> dict[str, Any] | None:
        """The body for the token counter; None if a count would not bound what is billed."""
        if not self._countable:
            return None
        return {name: self._body[name] for name in self._body if name in COUNTABLE_FIELDS}

    def tighten(self, count: int) -> Shape:
        """The shape by the token counter's figure plus a margin; never above the shape by bytes.

        Fallback and advisor models have tokenizers of their own: their parts stay bounded by bytes.

        Raises:
            InvalidInput: not a count of tokens.
        """
        if type(count) is not int or count < 0:
            msg = f"count: {count!r} is not a count of tokens"
            raise InvalidInput(msg)
        if not self._countable:
            return self.shape
        with_margin = count + -(-count // 10) + _COUNT_MARGIN_TOKENS
        return shape_of(self._plan, min(_prompt(self._plan), with_margin))

    def history(self, usage: Usage | None) -> History:
        """What a message thread holds after the reply to this request.

        Pass it to the request that continues from that reply. ``usage`` is that of the reply; None
        if it is not known, and the next turn is held at the context maximum.
        """
        tokens = None
        if usage is not None:
            written = usage.output_tokens + sum(part.output_tokens for part in usage.parts)
            results = sum(one.uses * one.tokens for one in self._plan.uses)
            tokens = usage.prompt_tokens + written + results
        return History(tokens=tokens, tools=self._held, cache_ttl=self._plan.cache_ttl)


def read_request(
    body: Mapping[str, Any],
    *,
    betas: tuple[str, ...] = (),
    allow: Allowances = VOUCHES_FOR_NOTHING,
    context_window: int,
    max_output: int | None = None,
    tier: Tier = "standard",
    history: History | None = None,
) -> Reading:
    """Read the body of ``POST /v1/messages``, or the ``params`` of one request of a batch.

    Args:
        body: the JSON body, with what ``extra_body`` merges into it.
        betas: values of the ``anthropic-beta`` header.
        allow: the caller's words about what the provider does not bound.
        context_window: the most input tokens that the model takes in one prompt.
        max_output: the most output tokens of the model; only limits the default ``max_tokens``.
        tier: ``batch`` for a request of a batch.
        history: what is known of the message thread that the request continues; without it such
            a request is declined, since the thread may hold tools that cost.

    Raises:
        Unbounded: its cost has no upper bound; names the cause and what to do. Nothing was sent.
        UnknownPrice: a place, speed or lifetime without a known price. Nothing was sent.
        InvalidInput: not the body of a request. Nothing was sent.
    """
    _known_fields(body, allow)
    model = _model(body)
    changes: dict[str, Any] = {}
    max_tokens = _max_tokens(body, allow, max_output, changes)
    word = _service_tier(body, allow, tier, changes)
    content = read_content(body)
    thread = _thread(body, allow, history, word)
    terms = _tools(body, content, thread.tools, allow, changes)
    if "tools" in changes:
        body = {**body, **changes}
    text = encode(body)
    speed = _speed(body, model)
    plan = Plan(
        model=model,
        text_bound=_text_bound(body, text, content, terms, thread.tokens),
        context_window=_window(context_window, betas),
        max_tokens=max_tokens,
        uses=terms.uses,
        searches=terms.searches,
        advisors=terms.advisors,
        hops=read_hops(body.get("fallbacks"), max_tokens, speed),
        compaction=read_compaction(body, allow, word),
        cache_ttl=longer(longest_ttl(text), thread.cache_ttl),
        tier=tier,
        geo=_geo(body, model),
        speed=speed,
        word=(*terms.word, *word),
    )
    shape = _bounded(plan)
    countable = _is_countable(body, content, terms)
    return Reading(
        shape=shape,
        changes=changes,
        needs_count=content.uncounted and countable,
        estimate_input=min(shape.input_tokens, _likely(text, content, thread)),
        model=model,
        stream=body.get("stream") is True,
        max_tokens=max_tokens,
        _body=body,
        _plan=plan,
        _held=terms.held,
        _countable=countable,
    )


def _prompt(plan: Plan) -> int:
    """The most tokens of the first prompt of the named model."""
    window = plan.context_window
    return window if plan.text_bound is None else min(plan.text_bound, window)


def _known_fields(body: Mapping[str, Any], allow: Allowances) -> None:
    for name in body:
        if name in PLAIN_FIELDS or name in RULED_FIELDS or name in allow.fields:
            continue
        msg = (
            f"{name}: it is not known what this request field costs; leave it out, or if it costs "
            f"nothing pass Allowances(fields={{{name!r}}})"
        )
        raise Unbounded(msg, feature=str(name))
    config = body.get("output_config")
    if isinstance(config, Mapping):
        for name in config:
            if name not in OUTPUT_CONFIG_FIELDS and f"output_config.{name}" not in allow.fields:
                feature = f"output_config.{name}"
                msg = (
                    f"{feature}: it is not known what this setting costs; leave it out, or if it "
                    f"costs nothing pass Allowances(fields={{{feature!r}}})"
                )
                raise Unbounded(msg, feature=feature)


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        msg = f"model: {model!r} is not the name of a model"
        raise InvalidInput(msg)
    return model


def _window(context_window: int, betas: tuple[str, ...]) -> int:
    asked = betas and "context-1m-2025-08-07" in betas
    return max(context_window, LARGEST_WINDOW) if asked else context_window


def _max_tokens(
    body: Mapping[str, Any], allow: Allowances, max_output: int | None, changes: dict[str, Any]
) -> int:
    """The output limit; a request without one gets one, with room for the thinking it asks for."""
    given = body.get("max_tokens")
    if given is None:
        given = allow.default_max_tokens
        thinking = body.get("thinking")
        if isinstance(thinking, Mapping) and thinking.get("type") != "disabled":
            budget = thinking.get("budget_tokens")
            given += budget if type(budget) is int and budget > 0 else allow.default_max_tokens
        if max_output is not None:
            given = min(given, max_output)
        changes["max_tokens"] = given
    if type(given) is not int or given < 0:
        msg = f"max_tokens: {given!r} is not a whole number of tokens"
        raise InvalidInput(msg)
    return given


def _service_tier(
    body: Mapping[str, Any], allow: Allowances, tier: Tier, changes: dict[str, Any]
) -> list[str]:
    """Shut out Priority Tier, which has prices of its own. Returns the caller's words so far."""
    named = body.get("service_tier")
    if named == "standard_only" or tier == "batch":
        return []
    if named is None:
        if not allow.set_service_tier:
            return ["service_tier"]
        changes["service_tier"] = "standard_only"
        return []
    msg = (
        f"service_tier: {named!r} allows a tier whose prices are not known; leave the field out or "
        "set it to 'standard_only'"
    )
    raise Unbounded(msg, feature="service_tier")


def _geo(body: Mapping[str, Any], model: str) -> Geo | None:
    geo = body.get("inference_geo")
    if geo in (None, "global", "us"):
        return cast("Geo | None", geo)
    msg = f"inference_geo: no price is known for {geo!r}; use 'global' or 'us'"
    raise UnknownPrice(msg, model=model, nearest=("global", "us"))


def _speed(body: Mapping[str, Any], model: str) -> Speed:
    speed = body.get("speed")
    if speed is None or speed == "standard":
        return "standard"
    if speed == "fast":
        return "fast"
    msg = f"speed: no price is known for {speed!r}; use 'standard' or 'fast'"
    raise UnknownPrice(msg, model=model, nearest=("standard", "fast"))


#: A thread that was begun elsewhere may be marked for the longest lifetime.
_UNKNOWN_THREAD = History(tokens=None, cache_ttl="1h")
_NO_THREAD = History(tokens=0)


def _thread(
    body: Mapping[str, Any], allow: Allowances, history: History | None, word: list[str]
) -> History:
    """What the server adds to the prompt from a message thread."""
    thread = body.get("thread")
    if thread is None:
        return _NO_THREAD
    kind = thread.get("type") if isinstance(thread, Mapping) else None
    if kind == "create":
        return _NO_THREAD
    if kind != "continue":
        msg = f"thread: it is not known what {thread!r} costs; use 'create' or 'continue'"
        raise Unbounded(msg, feature="thread")
    if history is not None:
        return history
    if not allow.unknown_threads:
        msg = (
            "thread: the conversation that the server holds is not known here; send it in full "
            "(thread=False in a tool runner), or if its tools all run on your side pass "
            "Allowances(unknown_threads=True), which holds a whole context window"
        )
        raise Unbounded(msg, feature="thread")
    word.append("unknown_threads")
    return _UNKNOWN_THREAD


def _tools(
    body: Mapping[str, Any],
    content: Content,
    held: tuple[Mapping[str, Any], ...],
    allow: Allowances,
    changes: dict[str, Any],
) -> ToolTerms:
    """The terms of all tools: the request's, those defined in its messages, those of its thread."""
    read_mcp_servers(body.get("mcp_servers"), allow)
    read_container(body.get("container"), allow)
    if content.uploads and allow.code_execution is None:
        raise unbounded_upload()
    tools = body.get("tools")
    if tools is None:
        tools = []
    if not isinstance(tools, (list, tuple)):
        msg = f"tools: {type(tools).__name__} is not a list of tools"
        raise InvalidInput(msg)
    filled = fill_uses(tools, allow)
    if filled is not None:
        changes["tools"] = tools = filled
    # Servers alone were enough to bring tools in before toolsets existed.
    implied = [{"type": "mcp_toolset"}] if body.get("mcp_servers") else []
    if not tools and not held and not content.inline_tools and not implied:
        return NO_TOOLS
    where = "tools" if tools else "thread tools" if held else "messages: inline tools"
    return read_tools([*tools, *held, *content.inline_tools, *implied], allow, where=where)


def _text_bound(
    body: Mapping[str, Any],
    text: str,
    content: Content,
    terms: ToolTerms,
    threaded: int | None,
) -> int | None:
    """The most tokens of the first prompt by its bytes; None where bytes bound nothing."""
    if content.uncounted or content.remote or terms.open_ended or threaded is None:
        return None
    if threaded and '"tool_reference"' in text:
        # It shows the definition of a tool that only the server holds.
        return None
    return text_tokens(body, text) + terms.overhead + threaded


def _bounded(plan: Plan) -> Shape:
    """The shape by bytes, once it is sure that a compaction pass can't happen or has a bound."""
    if plan.compaction is None or plan.compaction.tokens:
        return shape_of(plan, _prompt(plan))
    sums = totals(
        prompt=_prompt(plan),
        window=plan.context_window,
        max_tokens=plan.max_tokens,
        uses=plan.uses,
    )
    if compacts(plan, sums):
        name = "compaction" if plan.compaction.trigger is None else "context_management"
        msg = (
            f"{name}: the summary that it makes has no bound; pass "
            "Allowances(compaction_tokens=...), the most output tokens of one pass"
        )
        raise Unbounded(msg, feature=name)
    return shape_of(plan, _prompt(plan))


def _likely(text: str, content: Content, thread: History) -> int:
    """Likely input tokens: text at 3.5 bytes each, and rough figures for the rest."""
    size = len(text) - content.payload
    likely = max(1, size * 2 // 7) + content.images * _LIKELY_IMAGE
    if content.documents:
        likely += content.payload // 20
    if content.remote:
        likely += _LIKELY_REMOTE
    return likely + (thread.tokens or 0)


def _is_countable(body: Mapping[str, Any], content: Content, terms: ToolTerms) -> bool:
    """Whether the token counter sees all that will be billed as input of the first prompt."""
    if content.remote or terms.open_ended or "output_format" in body:
        return False
    thread = body.get("thread")
    # A thread that only begins holds nothing yet, so its body can be counted like any other.
    return thread is None or (isinstance(thread, Mapping) and thread.get("type") == "create")
