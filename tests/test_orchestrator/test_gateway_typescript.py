"""The official TypeScript SDK through the gateway.

Needs node and the package: ``npm ci --prefix tests/typescript``, which ``.ci/run`` does. Without them it is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from budgets import Cap

from .gatewaying import MODEL, rig

FOLDER = Path(__file__).parents[1] / "typescript"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no node"),
    pytest.mark.skipif(
        not (FOLDER / "node_modules" / "@anthropic-ai" / "sdk").is_dir(),
        reason="npm ci --prefix tests/typescript was not run",
    ),
]

SCRIPT = """
import Anthropic from "@anthropic-ai/sdk";
const client = new Anthropic({ apiKey: process.env.KEY, baseURL: process.env.BASE });
const ask = (text) => ({
  model: "%s", max_tokens: 400, messages: [{ role: "user", content: text }],
});
const found = {};
const plain = await client.messages.create(ask("[[sim:text=plain]]"));
found.plain = plain.content[0].text;
const stream = client.messages.stream(ask("[[sim:text=streamed]]"));
found.streamed = await stream.finalText();
const count = await client.messages.countTokens({
  model: "%s", messages: [{ role: "user", content: "Hello" }],
});
found.count = count.input_tokens;
found.models = (await client.models.list()).data.length;
try {
  await client.messages.create({ ...ask("Hello"), max_tokens: 20000 });
} catch (error) {
  found.status = error.status;
  found.message = error.message;
}
console.log(JSON.stringify(found));
"""


async def _run(key: str, base: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *("node", "--input-type=module", "-e", SCRIPT % (MODEL, MODEL)),
        cwd=FOLDER,
        env={"PATH": os.environ["PATH"], "KEY": key, "BASE": base},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_the_typescript_client_works_in_every_way() -> None:
    """Plain, streamed, counted, listed, and declined once, with our sentence."""
    async with rig(caps=(Cap("0.1", scope="app"),)) as on:
        lease = on.gateway.lease("app")
        found = await _run(lease.key, lease.base_url)

        assert (found["plain"], found["streamed"]) == ("plain", "streamed")
        assert found["count"] > 0
        assert found["models"] > 3
        assert found["status"] == 402
        assert "cap of $0.10 on scope 'app'" in found["message"]
        assert lease.figures().declined == 1
        on.prove_exact()
