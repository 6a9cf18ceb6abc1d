"""A session of the Agent SDK: one task owns it, from its start to its end (no other task may close it)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.outcomes import Outcome
from orchestrator.performer import Prompt

from .ends import Ending, ending_of
from .reading import Reading
from .watching import Watch

logger = logging.getLogger("earmark")

#: Messages in a row that can't be read before a session is given up.
_UNREAD_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An answer, looked at.

    Attributes:
        outcome, reason: as for an agent.
        value: the parsed answer, None unless ``ok``.
        ending: what the program's result says.
    """

    outcome: Outcome
    reason: str
    value: Any
    ending: Ending


Judge = Callable[[Ending], Awaitable[Judged]]


class Session:
    """One session.

    Args:
        options: ``ClaudeAgentOptions``.
        reading: takes its messages.
        watch: told of every sign of life.
        limits: ``max_turns`` and ``max_tokens``, for reasons.
    """

    def __init__(
        self, options: Any, reading: Reading, watch: Watch, *, limits: Mapping[str, int]
    ) -> None:
        self._options = options
        self._reading = reading
        self._watch = watch
        self._limits = limits
        self._client: Any = None
        self.judged: Judged | None = None
        self.repairs = 0

    @property
    def interrupt(self) -> Callable[[], Awaitable[object]] | None:
        """Asks the program to stop its turn; None where no turn is under way."""
        return None if self._client is None else self._client.interrupt

    async def own(self, prompt: Prompt, judge: Judge, repairs: int) -> Judged:
        """The session from start to end: the task, and its repairs while it is still open.

        Args:
            prompt: the task.
            judge: looks at each answer.
            repairs: corrective rounds at most, after answers that are ``invalid``.

        Raises:
            Exception: whatever the SDK raises when its program doesn't start, or is gone.
        """
        from claude_agent_sdk import ClaudeSDKClient  # the extra

        client = ClaudeSDKClient(self._options)
        try:
            await client.connect()
            self._client = client
            self._watch.started()
            judged = self.judged = await judge(await self._ask(client, prompt))
            while judged.outcome is Outcome.INVALID and self.repairs < repairs:
                self.repairs += 1
                self._reading.write("repair", round=self.repairs, reason=judged.reason)
                asked = correction(judged.reason)
                judged = self.judged = await judge(await self._ask(client, asked))
            return judged
        finally:
            self._client = None
            self._watch.closing()
            await _closed(client)

    async def _ask(self, client: Any, prompt: Prompt) -> Ending:
        self._reading.begin()
        await client.query(prompt if isinstance(prompt, str) else _as_message(prompt))
        while (
            not self._reading.is_answered
        ):  # each pass ends with the stream, or a message that can't be read
            try:
                if await self._read(client):
                    break
            except Exception as error:
                if type(error).__name__ != "MessageParseError":
                    raise
                self._reading.unread += 1
                logger.info("worker: a message that can't be read was passed over (%s)", error)
                if self._reading.unread > _UNREAD_MOST:
                    raise
        result = self._reading.result
        if result is None:
            raise ConnectionError("the program ended without a result")
        return ending_of(result, **self._limits)

    async def _read(self, client: Any) -> bool:
        """Take messages; True once it is answered, or nothing more comes."""
        async for message in client.receive_messages():
            self._watch.heard()
            self._reading.take(message)
            if self._reading.is_answered:
                return True
        return True


def correction(problem: str) -> str:
    """What is said in the open session about an answer that can't be used."""
    return (
        f"This can't be used yet: {problem[:2_000]}\n\nMend that, and give your whole answer again."
    )


async def _as_message(blocks: Sequence[Mapping[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    yield {
        "type": "user",
        "message": {"role": "user", "content": [dict(block) for block in blocks]},
        "parent_tool_use_id": None,
    }


async def _closed(client: Any) -> None:
    """Leave the session; what goes wrong there changes nothing that was said in it."""
    try:
        await client.disconnect()
    except Exception as error:  # noqa: BLE001 - its processes are ended in any case
        logger.info("worker: its session did not close well (%s)", error)
