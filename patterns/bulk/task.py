"""The task: what is asked about every document, as the request that each gets and the reading of its answer."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from budgets.prices import PriceBook
from orchestrator.agent import Agent, corrected
from orchestrator.documents import Document
from orchestrator.errors import ConfigError
from orchestrator.outcomes import Outcome

#: Room for thinking, where the model can't do without.
THINKING_TOKENS = 4096
#: Models that refuse ``thinking: disabled`` (facts of 2026-11; see the migration notes of Opus 5.5 and Fable 5).
_ALWAYS_THINKS = ("claude-opus-5-5", "claude-fable-5", "claude-mythos-5")
#: Raised when a prompt changes, since an answer to another prompt is another answer.
_PROMPT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(ABC):
    """What is asked about every document: ``Classify``, ``Extract`` or ``Map``.

    A task knows no run and no way of sending: a direct call and a batch send the same ``body``, and both read
    the answer by ``read``.

    Attributes:
        model: a model id.
        cached: the prefix (``system_text``) is marked for the prompt cache, to live for ``ttl``.
        output_tokens: the most tokens of an answer, thinking not counted; None takes the task's own figure.

    Raises:
        ConfigError: something here can't be used.
    """

    name: ClassVar[str]
    #: Name of the agent that asks: part of scopes and reports.
    agent_name: ClassVar[str]
    #: What an answer is called in a row: ``label`` or ``value``.
    answer_name: ClassVar[Literal["label", "value"]] = "value"

    model: str = "claude-haiku-5-5"
    cached: bool = False
    ttl: Literal["5m", "1h"] = "5m"
    output_tokens: int | None = None
    _base: str = field(default="", init=False, repr=False, compare=False)
    _agent: Agent = field(default=None, init=False, repr=False, compare=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.output_tokens is not None and self.output_tokens < 1:
            raise ConfigError(f"max_tokens is {self.output_tokens}; it must be 1 or more")
        parts = [_PROMPT_VERSION, self.system_text, self.schema, self.model]
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
        object.__setattr__(self, "_base", hashlib.sha256(text.encode()).hexdigest())
        object.__setattr__(self, "_agent", self._made())

    # ---- what each task says ------------------------------------------------------------------------

    @property
    @abstractmethod
    def system_text(self) -> str:
        """Instructions: the same for every document."""

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of an answer as it is sent; None for free text."""

    @property
    @abstractmethod
    def answer_tokens(self) -> int:
        """The most tokens of an answer, unless ``output_tokens`` says otherwise."""

    @property
    @abstractmethod
    def likely_tokens(self) -> int:
        """Tokens that an answer will probably have."""

    def check(self, value: Any) -> str | None:
        """What is wrong with an answer that fits the schema as sent; None if nothing is."""
        del value
        return None

    # ---- the request ----------------------------------------------------------------------------------

    @property
    def repairs(self) -> int:
        """Corrective tries after an answer that does not fit; free text always fits."""
        return 0 if self.schema is None else 1

    @property
    def system(self) -> list[dict[str, Any]]:
        """The system prompt as blocks, marked for the cache if that is worth it."""
        block: dict[str, Any] = {"type": "text", "text": self.system_text}
        if self.cached:
            block["cache_control"] = {"type": "ephemeral"}
            if self.ttl != "5m":
                block["cache_control"]["ttl"] = self.ttl
        return [block]

    def prompt(self, document: Document) -> str:
        """The message about one document."""
        return f"<document>\n{document.text}\n</document>"

    def identity(self, document: Document) -> str:
        """Names this document under this task: content, prompt, schema and model; not its path."""
        return hashlib.sha256(f"{self._base}:{document.sha256}".encode()).hexdigest()[:32]

    @property
    def fingerprint(self) -> str:
        """Names this task: prompt, schema and model. An answer to another one is another answer."""
        return self._base

    @property
    def max_tokens(self) -> int:
        """The output limit of one call, sized for the thinking that the model can't leave out."""
        return (self.output_tokens or self.answer_tokens) + (
            THINKING_TOKENS if self.always_thinks else 0
        )

    @property
    def always_thinks(self) -> bool:
        """Whether the model can't be told not to think."""
        return self.model.startswith(_ALWAYS_THINKS)

    @property
    def settings(self) -> dict[str, Any]:
        """Request fields that keep thinking small."""
        if self.always_thinks:
            return {"output_config": {"effort": "low"}}
        return {"thinking": {"type": "disabled"}}

    @property
    def agent(self) -> Agent:
        """The agent that asks: one call, and corrective ones for an answer that does not fit."""
        return self._agent

    @property
    def corrector(self) -> Agent:
        """The agent that asks once more about an answer that does not fit; it makes one call."""
        return replace(self._agent, repairs=0)

    def corrected(self, document: Document, problem: str) -> str:
        """The message of a corrective try: what was wrong, not the broken answer, so that it doesn't grow."""
        return str(corrected(self.prompt(document), problem))

    def _made(self) -> Agent:
        return Agent(
            name=self.agent_name,
            model=self.model,
            system=self.system,
            output=self.schema,
            check=self.check,
            repairs=self.repairs,
            max_turns=1,
            max_tokens=self.max_tokens,
            extra=self.settings,
        )

    def body(self, document: Document) -> dict[str, Any]:
        """The request about one document, as a direct call and as a batch send it."""
        return self._agent.body([{"role": "user", "content": self.prompt(document)}])

    def with_cache(
        self, prefix_tokens: int, prices: PriceBook, *, ttl: Literal["5m", "1h"] = "5m"
    ) -> Self:
        """The task with its prefix marked, if the prefix reaches the model's minimum for caching."""
        cached = prefix_tokens >= prices.cache_minimum(self.model)
        return replace(self, cached=cached, ttl=ttl)

    # ---- the answer -----------------------------------------------------------------------------------

    def read(self, message: Mapping[str, Any]) -> tuple[Outcome, str, Any]:
        """An answer (a Message as JSON) as its outcome, the reason in a sentence, and its value."""
        blocks = message.get("content")
        if not isinstance(blocks, list) or not all(isinstance(one, Mapping) for one in blocks):
            return (
                Outcome.IN_DOUBT,
                "the answer can't be read: it has no list of content blocks",
                None,
            )
        text = "".join(str(one.get("text", "")) for one in blocks if one.get("type") == "text")
        return self.read_text(str(message.get("stop_reason") or ""), text)

    def read_text(self, stop_reason: str, text: str) -> tuple[Outcome, str, Any]:
        """The same, from its stop reason and its text."""
        outcome, reason, value = self._agent._answers.end(stop_reason, text, self.max_tokens)
        return outcome, reason, self.valued(value) if outcome is Outcome.OK else None

    def valued(self, value: Any) -> Any:
        """What of a parsed answer goes into its row."""
        return value

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of an answer in a table."""
        return (self.answer_name,)

    def cells(self, value: Any) -> dict[str, Any]:
        """An answer's cells by column; whatever has no value is left out."""
        return {} if value is None else {self.answer_name: value}


def read_words(words: str, what: str) -> str:
    """Words of the user's that become part of a prompt.

    Raises:
        ConfigError: there are none.
    """
    if not words.strip():
        raise ConfigError(f"{what}: it is empty; say what is wanted")
    return words.strip()
