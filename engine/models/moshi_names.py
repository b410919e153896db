"""Which model ids mean Moshi, and where its weights are. Imports nothing."""

TINY_RANDOM_ID = "moshi-tiny-random"  # random weights, for tests
PREFIX = "moshi:"  # followed by a folder or a hub id
_KNOWN = ("kyutai/moshiko-", "kyutai/moshika-", "nvidia/personaplex-")


def moshi_location(model_id: str) -> str | None:
    """What the Moshi backend must load for `model_id`; None if it is another kind of model."""
    if model_id == TINY_RANDOM_ID:
        return model_id.removeprefix("moshi-")
    if model_id.startswith(PREFIX):
        return model_id.removeprefix(PREFIX)
    return model_id if model_id.startswith(_KNOWN) else None
