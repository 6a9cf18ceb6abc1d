"""Telling somebody that a job has ended: a command, a webhook, or both. Counts and dollars only."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import httpx2

from .settings import Notify

logger = logging.getLogger("earmark")


async def tell(notify: Notify, facts: Mapping[str, Any]) -> None:
    """Run the command and post to the webhook. A fault is logged: the job is done all the same.

    Args:
        notify: who.
        facts: what they are told, plain JSON.
    """
    if notify.command:
        await _run(notify, json.dumps(facts).encode())
    if notify.webhook:
        await _post(notify, facts)


async def _run(notify: Notify, body: bytes) -> None:
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
    finally:
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _post(notify: Notify, facts: Mapping[str, Any]) -> None:
    try:
        async with httpx2.AsyncClient(timeout=notify.timeout_s) as client:
            answer = await client.post(notify.webhook, json=dict(facts))
            answer.raise_for_status()
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        # The URL may carry a secret: its host is enough to know it by.
        host = notify.webhook.split("://")[-1].split("/")[0].rpartition("@")[2]
        logger.error("notify: the webhook at %s did not take it (%s)", host, type(error).__name__)  # noqa: TRY400
