"""Our packages are imported by plain names, which must stay ours."""

from importlib.metadata import packages_distributions

import pytest


@pytest.mark.parametrize("name", ["server", "engine", "protocol", "admission", "bench"])
def test_no_other_distribution_provides_our_names(name: str) -> None:
    """A clash in a shared site-packages would import somebody else's code."""
    assert set(packages_distributions()[name]) == {"metronome-realtime"}
