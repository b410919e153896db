"""Settings for every test."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from engine.weights.paths import embedded_dir

# Machines differ: that one example took long is no failure.
settings.register_profile("metronome", deadline=None)
settings.load_profile("metronome")


@pytest.fixture(scope="session", autouse=True)
def _own_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder whose weights and tools are the user's, but not what servers have learned of this machine.

    What servers learn on cores busy with tests would bound the user's own, and what those learned decides no test.
    """
    weights, ours = embedded_dir(), tmp_path_factory.mktemp("cache")
    theirs = weights.parent
    (ours / theirs.name).mkdir()
    (ours / theirs.name / weights.name).symlink_to(weights)
    for tool in theirs.parent.glob("*"):
        if tool != theirs:
            (ours / tool.name).symlink_to(tool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(ours))
        yield
