"""Tenants side by side at the door of the real server, over real sockets."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import websockets
from support.server_process import SIM, run_server
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from server.auth import tenant_of

pytestmark = [pytest.mark.socket, pytest.mark.slow]


async def _knock(url: str, key: str) -> ClientConnection | int:
    """A call, or the status of the refusal."""
    try:
        return await websockets.connect(url, additional_headers={"Authorization": f"Bearer {key}"})
    except InvalidStatus as refused:
        return refused.response.status_code


def test_each_tenant_gets_its_quota_and_premium_enters_a_full_house(tmp_path: Path) -> None:
    """A loud tenant offers ten times as many calls as a quiet one; places are kept for a third."""
    keys = tmp_path / "keys"
    keys.write_text("loud\nquiet\ngold\nplain\n", encoding="utf-8")
    overrides: dict[str, Any] = {
        **SIM,
        "server.api_keys_file": str(keys),
        "engine.max_sessions": 14,
        "admission.remember": False,
        "admission.quotas": (f"{tenant_of('loud')}=8", f"{tenant_of('quiet')}=3"),
        "admission.premium": (tenant_of("gold"),),
        "admission.reserved_sessions": 3,
    }

    async def main() -> None:
        async with run_server(overrides) as server:
            rng, calls = random.Random(1), []
            inside: Counter[str] = Counter()
            refused: Counter[tuple[str, int]] = Counter()
            crowd = ["loud" if rng.random() < 10 / 11 else "quiet" for _ in range(110)]
            for key in [*crowd, *["plain"] * 2, *["gold"] * 5]:
                answer = await _knock(server.ws, key)
                if isinstance(answer, int):
                    refused[key, answer] += 1
                else:
                    calls.append(answer)
                    inside[key] += 1
            assert inside == {"loud": 8, "quiet": 3, "gold": 3}
            # Over its own quota a tenant is told so; the house being full is another matter.
            assert set(refused) == {("loud", 429), ("quiet", 429), ("plain", 503), ("gold", 503)}
            for call in calls:
                await call.close()
            await server.settled()

    asyncio.run(main())
