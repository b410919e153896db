"""The simulated plant keeps the contract of held decoding on a resident context."""

import json

from support.backend_driver import BackendDriver

from engine.sim_backend import SimBackend
from engine.sim_json import FIRST_BYTE
from engine.work import Sampling

SCHEMA = json.dumps({"type": "object", "properties": {"city": {"const": "Paris"}}})
STOP = 1


def text(tokens: tuple[int, ...]) -> str:
    return bytes(token - FIRST_BYTE for token in tokens if token >= FIRST_BYTE).decode()


def test_a_held_value_is_decoded_a_few_tokens_at_a_time() -> None:
    """Appends that add nothing go on with it; words before and after it are free."""
    driver = BackendDriver(SimBackend())
    held = {"sampling": Sampling(schema=SCHEMA), "stop_token_ids": (STOP,)}
    driver.decode("s", (10, 11), 5)
    written = driver.decode("s", (12,), 4, **held)
    while written[-1] != STOP:
        written += driver.decode("s", (), 4, **held)
    assert json.loads(text(written)) == {"city": "Paris"}
    assert text(driver.decode("s", (13,), 4)) == ""
    again = driver.decode("s", (14,), 200, **held)
    assert json.loads(text(again)) == {"city": "Paris"}
