"""The positions that a session of audio and text is given, against those that vLLM would walk to."""

from types import MethodType, SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.models, pytest.mark.vllm, pytest.mark.slow]

CONFIG = SimpleNamespace(
    vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=25),
    position_id_per_seconds=25,
    seconds_per_chunk=2,
)
HELPERS = (
    "iter_mm_features",
    "_compute_audio_token_count",
    "_get_audio_for_video_mapping",
    "_compute_interleaved_positions",
)


def model_class(name: str) -> Any:
    from engine.vllm_adapter.multimodal import _IMPORT_TORCHVISION, _models

    module, cls = _IMPORT_TORCHVISION[name]
    return getattr(_models(module), cls)


def features(frames: list[int], tokens: list[int]) -> tuple[list[Any], int]:
    """Items of audio with text between them, and the length of it all."""
    import torch
    from vllm.multimodal.inputs import (
        MultiModalBatchedField,
        MultiModalFeatureSpec,
        MultiModalFieldElem,
        MultiModalKwargsItem,
        PlaceholderRange,
    )

    found, offset = [], 12
    for index, (count, length) in enumerate(zip(frames, tokens, strict=True)):
        elem = MultiModalFieldElem(torch.tensor(count), MultiModalBatchedField(keep_on_cpu=True))
        item: Any = MultiModalKwargsItem({"audio_feature_lengths": elem})
        place = PlaceholderRange(offset, length)
        found.append(MultiModalFeatureSpec(item, "audio", str(index), place))
        offset += length + 1 + index % 5  # its end token, and up to four more
    return found, offset + 3


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen2_5OmniForConditionalGeneration", "2.5"),
        ("Qwen3OmniMoeForConditionalGeneration", "3"),
    ],
)
def test_the_walk_ends_in_0_1_2(name: str, count: str) -> None:
    """On all three axes, for items of any length, whole seconds or not."""
    import torch

    from engine.models import qwen_omni
    from engine.vllm_adapter.mrope import _count

    tokens = qwen_omni.tokens_2_5 if count == "2.5" else qwen_omni.tokens_3
    frames = [100, 8, 100, 37, 250, 99, 101, 800]
    found, length = features(frames, [tokens(n) for n in frames])
    cls = model_class(name)
    walker: Any = SimpleNamespace(config=CONFIG)
    for helper in HELPERS:
        if hasattr(cls, helper):
            setattr(walker, helper, MethodType(getattr(cls, helper), walker))
    walked, delta = cls.get_mrope_input_positions(walker, [0] * length, found)
    counted, ours = _count(walker, [0] * length, found)
    assert torch.equal(walked.long(), counted)
    assert delta == ours == 0
