"""The embedded voice stack's weights: where they lie, how they come there, are they whole."""

from engine.weights.fetch import FetchFailed, fetch_embedded
from engine.weights.paths import EmbeddedFiles, embedded_dir
from engine.weights.store import WeightsCorrupt, WeightsError, WeightsMissing, verify_embedded

__all__ = [
    "EmbeddedFiles",
    "FetchFailed",
    "WeightsCorrupt",
    "WeightsError",
    "WeightsMissing",
    "embedded_dir",
    "fetch_embedded",
    "verify_embedded",
]
