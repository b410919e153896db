"""What all tests on a GPU share: a device, or the reason why they are skipped."""

import gc
from collections.abc import Iterator

import pytest
from gpu.device import missing


@pytest.fixture(scope="session", autouse=True)
def device() -> None:
    """Skip everything here where there is no GPU, before any model is built."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def freed(device: None) -> Iterator[None]:
    """Give the card back before the next module builds its engine."""
    yield
    gc.collect()
    import torch

    torch.cuda.empty_cache()
