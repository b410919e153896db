"""What the encode benchmark says about features made in pieces."""

from bench.encode import differences, speech, subjects


def test_streamed_features_are_near_the_whole_clips_and_separate_ones_are_not() -> None:
    """Exactly the same once the caller's loudest sound is known."""
    figures = {figure.name: float(figure.value) for figure in differences(speech(), 128)}
    assert figures["streamed, later turns: largest"] == 0
    first = figures["streamed, first turn: mean difference"]
    assert 0 < first < 0.1 * figures["each second by itself: mean difference"]


def test_every_model_is_measured_at_its_own_width() -> None:
    """MiniCPM-o and Ultravox were trained on 80 bands, Qwen on 128."""
    assert {subject.name: subject.audio.bins for subject in subjects()} == {
        "Qwen2-Audio": 128,
        "Qwen2.5-Omni": 128,
        "Qwen3-Omni": 128,
        "MiniCPM-o 4.5": 80,
        "Ultravox": 80,
    }
