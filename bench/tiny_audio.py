"""Model folders in the shape of real interaction models, with everything but the weights, for benchmarks and tests.

Two layers, 128 wide, byte-level tokens. vLLM fills them with random weights (`load_format="dummy"`); no hub, no
processor and no torchvision are needed, because nothing of a Hugging Face processor is ever used.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.models.detokenizer import _byte_alphabet

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
MEL_BINS = 32


def write_tokenizer(folder: Path, specials: Sequence[str]) -> dict[str, int]:
    """Write tokenizer.json with one token per byte and these control tokens; their ids."""
    import tokenizers

    vocabulary = {symbol: index for index, symbol in enumerate(sorted(_byte_alphabet()))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": CONTROL[1]}))
    known: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return {name: known[name] for name in specials}


def _text(**more: Any) -> dict[str, Any]:
    """A language model of two layers."""
    return {
        "vocab_size": 384,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 32_768,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    } | more


def _audio(**more: Any) -> dict[str, Any]:
    """An audio encoder of two layers."""
    return {
        "num_mel_bins": MEL_BINS,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "d_model": 64,
        "max_source_positions": 1500,
    } | more


def _write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_qwen2_audio(folder: Path) -> Path:
    """Qwen2-Audio: a Whisper-shaped encoder in front of a Qwen2 language model."""
    ids = write_tokenizer(folder, (*CONTROL, "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"))
    return _write(
        folder,
        {
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "model_type": "qwen2_audio",
            "text_config": _text(model_type="qwen2"),
            "audio_config": _audio(model_type="qwen2_audio_encoder"),
            "audio_token_index": ids["<|AUDIO|>"],
        },
    )


_OMNI_TOKENS = ("<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>")


def write_qwen2_5_omni(folder: Path) -> Path:
    """Qwen2.5-Omni's thinker."""
    audio = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
    ids = write_tokenizer(folder, (*CONTROL, *audio, *_OMNI_TOKENS))
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]}
    thinker = {
        "text_config": _text(model_type="qwen2_5_omni_text", rope_parameters=rope),
        "audio_config": _audio(output_dim=128, n_window=100),
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 2, "out_hidden_size": 128},
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
    }
    return _write(
        folder,
        {
            "architectures": ["Qwen2_5OmniForConditionalGeneration"],
            "model_type": "qwen2_5_omni",
            "thinker_config": thinker,
            "enable_audio_output": False,
        },
    )


def write_qwen3_omni(folder: Path) -> Path:
    """Qwen3-Omni's thinker: four experts."""
    audio = ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")
    vision = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    ids = write_tokenizer(folder, (*CONTROL, *audio, *vision))
    rope = {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [4, 6, 6],
        "mrope_interleaved": True,
    }
    experts = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
    thinker = {
        "text_config": _text(rope_parameters=rope, **experts),
        "audio_config": _audio(output_dim=128, downsample_hidden_size=16),
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "num_heads": 2,
            "out_hidden_size": 128,
            "deepstack_visual_indexes": [0],
            "image_size": 64,  # vLLM reads these two, transformers gives them no default
            "apply_vit_abs_pos_embed": True,
        },
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    return _write(
        folder,
        {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "model_type": "qwen3_omni_moe",
            "thinker_config": thinker,
            "enable_audio_output": False,
            "im_start_token_id": ids["<|im_start|>"],
            "im_end_token_id": ids["<|im_end|>"],
        },
    )


@contextmanager
def spread_weights(seed: int = 0) -> Iterator[None]:
    """Within it vLLM's dummy weights (all near 0) are drawn so that each input shows in the next token.

    Drawn while the model loads: the CPU backend packs weights right after, and what is written later is never read.
    """
    import torch
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def load(loader: Any, model: Any, config: Any) -> None:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    fresh = torch.randn(parameter.shape, generator=draw)
                    parameter.copy_(fresh * 2.0 / parameter.shape[-1] ** 0.5)
                else:
                    parameter.fill_(1.0 if "weight" in name else 0.0)

    stock, DummyModelLoader.load_weights = DummyModelLoader.load_weights, load
    try:
        yield
    finally:
        DummyModelLoader.load_weights = stock


# Whisper's configuration wants to know its tokens, though its decoder is not there.
_SPECIALS = dict.fromkeys(
    ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0
)
_MINICPMO_TOKENS = (
    "<unk>",
    "<image>",
    "</image>",
    "<unit>",
    "</unit>",
    "<|audio_start|>",
    "<|audio|>",
    "<|audio_end|>",
    "<|tts_bos|>",
    "<|tts_pad|>",
    "<|listen|>",
    "<|speak|>",
    "<|chunk_eos|>",
    "<|chunk_tts_eos|>",
    "<|turn_eos|>",
)
# The checkpoint brings its configuration class as code; this one has the fields that vLLM reads.
_MINICPMO_CONFIG = """
from transformers import Qwen3Config, SiglipVisionConfig, WhisperConfig


class MiniCPMOConfig(Qwen3Config):
    model_type = "minicpmo"

    def __init__(self, vision_config=None, audio_config=None, **fields):
        super().__init__(**fields)
        self.vision_config = _built(SiglipVisionConfig, vision_config)
        self.audio_config = _built(WhisperConfig, audio_config)


def _built(kind, config):
    return config if isinstance(config, kind) else kind(**(config or {}))
"""


def write_minicpmo(folder: Path) -> Path:
    """MiniCPM-o 4.5 without its voice: a Whisper-shaped encoder in front of a Qwen3 language model."""
    write_tokenizer(folder, (*CONTROL, *_MINICPMO_TOKENS))
    (folder / "configuration_minicpmo.py").write_text(_MINICPMO_CONFIG)
    return _write(
        folder,
        {
            "auto_map": {"AutoConfig": "configuration_minicpmo.MiniCPMOConfig"},
            "architectures": ["MiniCPMO"],
            "model_type": "minicpmo",
            "version": "4.5",
            **_text(),
            "query_num": 64,
            "image_size": 448,
            "drop_vision_last_layer": False,
            "batch_vision_input": True,
            "audio_pool_step": 5,
            "audio_chunk_length": 1.0,
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 448,
                "patch_size": 14,
            },
            "audio_config": _audio(
                encoder_ffn_dim=256, vocab_size=100, decoder_layers=1, **_SPECIALS
            ),
        },
    )


def write_ultravox(folder: Path) -> Path:
    """Ultravox around a Qwen3 language model, as its ChatML versions are."""
    ids = write_tokenizer(folder, (*CONTROL, "<|audio|>"))
    return _write(
        folder,
        {
            "architectures": ["UltravoxModel"],
            "model_type": "ultravox",
            "text_config": _text(model_type="qwen3", architectures=["Qwen3ForCausalLM"]),
            "audio_config": _audio(
                model_type="whisper", vocab_size=100, decoder_layers=1, **_SPECIALS
            ),
            "audio_token_index": ids["<|audio|>"],
            "hidden_size": 128,
            "stack_factor": 8,
            "vocab_size": 384,
            "projector_ln_mid": True,
        },
    )


_TEKKEN_SPECIALS = 64  # ids before the first word
VOXTRAL_WINDOWS = (128, 64)  # tokens the decoder looks back, and 20 ms frames the encoder does


def write_voxtral(folder: Path) -> Path:
    """Voxtral realtime in Mistral's own format: a causal encoder, a decoder with a window, one token per byte."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    names = [str(token.value) for token in SpecialTokens]
    encoding = {"num_mel_bins": MEL_BINS, "hop_length": 160, "window_size": 400}
    tekken = {
        "config": {
            "pattern": r"[\s\S]",
            "num_vocab_tokens": 256,
            "default_vocab_size": 256 + _TEKKEN_SPECIALS,
            "default_num_special_tokens": _TEKKEN_SPECIALS,
            "version": "v13",
        },
        "vocab": [
            {"rank": n, "token_bytes": b64encode(bytes([n])).decode(), "token_str": None}
            for n in range(256)
        ],
        "special_tokens": [
            {"rank": n, "token_str": name, "is_control": True} for n, name in enumerate(names)
        ],
        "audio": {
            "sampling_rate": 16_000,
            "frame_rate": 12.5,
            "audio_encoding_config": encoding,
            "transcription_format": "streaming",
            "transcription_delay_ms": 480.0,
            "streaming_look_ahead_ms": 2.5,
            "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": 32,
        },
    }
    encoder = {
        "dim": 64,
        "n_layers": 2,
        "hidden_dim": 128,
        "n_heads": 2,
        "head_dim": 32,
        "vocab_size": 100,
        "causal": True,
        "sliding_window": VOXTRAL_WINDOWS[1],
        "pos_embed": "rope",
        "audio_encoding_args": encoding | {"sampling_rate": 16_000, "global_log_mel_max": 1.5},
    }
    whisper = {"encoder_args": encoder, "downsample_args": {"downsample_factor": 4}}
    params = {
        "dim": 128,
        "n_layers": 2,
        "head_dim": 32,
        "hidden_dim": 128,
        "n_heads": 4,
        "n_kv_heads": 2,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "vocab_size": 256 + _TEKKEN_SPECIALS,
        "tied_embeddings": True,
        "max_position_embeddings": 4096,
        "sliding_window": VOXTRAL_WINDOWS[0],
        "causal": True,
        "ada_rms_norm_t_cond": True,
        "ada_rms_norm_t_cond_dim": 32,
        "multimodal": {"whisper_model_args": whisper},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(tekken))
    (folder / "params.json").write_text(json.dumps(params, indent=1))
    return folder


HEARING: dict[str, Callable[[Path], Path]] = {
    "qwen2-audio": write_qwen2_audio,
    "qwen2.5-omni": write_qwen2_5_omni,
    "qwen3-omni": write_qwen3_omni,
    "ultravox": write_ultravox,
}
