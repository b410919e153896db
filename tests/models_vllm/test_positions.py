"""The positions that a session of audio, images and text is given, against those that vLLM would walk to."""

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


def pictures(grids: list[tuple[int, int]]) -> tuple[list[Any], int]:
    """Images of so many rows and columns of tokens with text between them, and the length of it all."""
    import torch
    from vllm.multimodal.inputs import (
        MultiModalBatchedField,
        MultiModalFeatureSpec,
        MultiModalFieldElem,
        MultiModalKwargsItem,
        PlaceholderRange,
    )

    found, offset = [], 7
    for index, (rows, columns) in enumerate(grids):
        grid = torch.tensor([1, 2 * rows, 2 * columns])
        elem = MultiModalFieldElem(grid, MultiModalBatchedField(keep_on_cpu=True))
        item: Any = MultiModalKwargsItem({"image_grid_thw": elem})
        found.append(
            MultiModalFeatureSpec(
                item, "image", str(index), PlaceholderRange(offset, rows * columns)
            )
        )
        offset += rows * columns + 3
    return found, offset + 5


@pytest.mark.parametrize(
    "name", ["Qwen2_5OmniForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration"]
)
def test_an_image_has_the_walks_positions_and_what_follows_counts_tokens(name: str) -> None:
    """Relative to where it begins, an image is placed as the model was trained; behind it comes a gap and no more."""
    import torch

    from engine.vllm_adapter.mrope import _count

    grids = [(3, 5), (6, 2), (4, 4)]
    found, length = pictures(grids)
    cls = model_class(name)
    walker: Any = SimpleNamespace(config=CONFIG)
    for helper in HELPERS:
        if hasattr(cls, helper):
            setattr(walker, helper, MethodType(getattr(cls, helper), walker))
    walked, _ = cls.get_mrope_input_positions(walker, [0] * length, found)
    counted, delta = _count(walker, [0] * length, found)
    assert delta == 0
    gap, fed = 0, 0
    for feature, (rows, columns) in zip(found, grids, strict=True):
        end = feature.mm_position.offset + rows * columns
        # The text before it, and the image: as walked, but for the gaps behind the images before.
        assert torch.equal(walked[:, fed:end].long() + gap, counted[:, fed:end])
        gap += rows * columns - max(rows, columns)
        fed = end
    assert torch.equal(walked[:, fed:].long() + gap, counted[:, fed:])
    assert torch.equal(counted[:, fed:], torch.arange(fed, length).expand(3, -1))


def test_features_of_what_was_computed_before_ask_for_nothing() -> None:
    """vLLM strips them; positions of those tokens are never read again."""
    from engine.vllm_adapter.mrope import _count

    found, length = pictures([(2, 2)])
    found[0].data = None
    counted, _ = _count(SimpleNamespace(config=CONFIG), [0] * length, found)
    assert counted[2].tolist() == list(range(length))
