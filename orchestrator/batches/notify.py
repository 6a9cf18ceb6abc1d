"""Telling somebody that a job has ended: a command, a webhook, or both. Counts and dollars only.

Each end is told once. What was told is on disk right after it was: a kill in between may tell it once more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from .settings import Notify

logger = logging.getLogger("earmark")


#: In a run's folder: the end that its job came to last, and which end each of the two was told of.
FILE = "notice.json"
#: What may be another each time that the same end is come to.
_PASSING = frozenset({"seconds", "cap_usd", "via"})


def reached(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Write down which end a job has come to, before it is told.

    Args:
        folder: of its run.
        facts: what is to be told.

    Returns:
        Whether it had come to that end before: nothing was done since.
    """
    record, end = _record(folder), _name_of(facts)
    if record.get("end") == end:
        return True
    _write(folder, {**record, "end": end})
    return False


async def tell(folder: Path, notify: Notify, facts: Mapping[str, Any]) -> None:
    """Run the command and post to the webhook, unless they were told of this end last.

    A fault is logged: the job is done all the same. Whoever did not take it is told when the job is touched again.

    Args:
        folder: of the job's run, where it is written down.
        notify: who.
        facts: what they are told, plain JSON.
    """
    end = _name_of(facts)
    told = _record(folder).get("told", {})
    is_due = notify.command and told.get("command") != end
    if is_due and await _run(notify, json.dumps(facts).encode()):
        _note(folder, "command", end)
    is_due = notify.webhook and told.get("webhook") != end
    if is_due and await _post(notify, facts):
        _note(folder, "webhook", end)


def _name_of(facts: Mapping[str, Any]) -> str:
    """Equal for facts that tell of the same end."""
    lasting = {name: value for name, value in facts.items() if name not in _PASSING}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def _note(folder: Path, who: str, end: str) -> None:
    record = _record(folder)
    _write(folder, {**record, "told": {**record.get("told", {}), who: end}})


def _record(folder: Path) -> dict[str, Any]:
    """What is on record; nothing where that can't be read: then it is told once more."""
    try:
        record = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(record, dict) and isinstance(record.get("told", {}), dict)
    return record if is_ours else {}


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    fresh = folder / f"{FILE}.new"
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / FILE)
    except OSError as error:
        logger.error("notify: %s can't be written (%s)", folder / FILE, error.strerror)  # noqa: TRY400


async def _run(notify: Notify, body: bytes) -> bool:
    """Whether it took it."""
    program = notify.command[0]
    process = None
    try:
        process = await asyncio.create_subprocess_exec(
            *notify.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await asyncio.wait_for(process.communicate(body), notify.timeout_s)
    except TimeoutError:
        logger.error("notify: %s took over %g s and was ended", program, notify.timeout_s)  # noqa: TRY400
    except OSError as error:
        logger.error("notify: %s can't be run (%s)", program, error.strerror)  # noqa: TRY400
    else:
        if process.returncode:
            logger.error("notify: %s ended with code %s", program, process.returncode)
        return not process.returncode
    finally:
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
    return False


async def _post(notify: Notify, facts: Mapping[str, Any]) -> bool:
    """Whether it took it."""
    try:
        async with httpx2.AsyncClient(timeout=notify.timeout_s) as client:
            answer = await client.post(notify.webhook, json=dict(facts))
            answer.raise_for_status()
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        # The URL may carry a secret: its host is enough to know it by.
        host = notify.webhook.split("://")[-1].split("/")[0].rpartition("@")[2]
        logger.error("notify: the webhook at %s did not take it (%s)", host, type(error).__name__)  # noqa: TRY400
        return False
    return True
