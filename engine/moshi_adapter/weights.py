"""Builds the language model and the two codecs, from a checkpoint or at random."""

import copy
from dataclasses import dataclass

import torch
from moshi.models import LMModel, MimiModel, loaders

from engine.moshi_adapter.checkpoint import Checkpoint
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings

# A model of 0.4 M parameters with every part of the real one: 13 ms a step on one core.
_TINY_MIMI = {
    "sample_rate": loaders.SAMPLE_RATE,
    "channels": 1,
    "frame_rate": loaders.FRAME_RATE,
    "seanet": {**loaders._seanet_kwargs, "dimension": 32, "n_filters": 4},
    "quantizer": {
        **loaders._quantizer_kwargs,
        "dimension": 16,
        "n_q": 8,
        "bins": 64,
        "input_dimension": 32,
        "output_dimension": 32,
    },
    "transformer": {
        **loaders._transformer_kwargs,
        "d_model": 32,
        "num_heads": 2,
        "num_layers": 1,
        "context": 16,
        "dim_feedforward": 64,
        "input_dimension": 32,
        "output_dimensions": [32],
    },
}
_TINY_LM = {
    **loaders._lm_kwargs,
    "dim": 64,
    "text_card": 100,
    "card": 64,
    "num_heads": 2,
    "num_layers": 2,
    "hidden_scale": 2,
    "context": 24,
    "depformer_dim": 32,
    "depformer_dim_feedforward": 64,
    "depformer_num_heads": 2,
    "depformer_num_layers": 1,
}
_GAIN, _SPREAD = 2.0, 0.05  # of the tiny codec, see `_enliven`


@dataclass(frozen=True, slots=True)
class Models:
    """What a step runs through, in order: encoder, language model, decoder."""

    encoder: MimiModel
    lm: LMModel
    decoder: MimiModel  # the encoder's weights under a streaming state of its own


def load_models(settings: MoshiSettings) -> Models:
    """The models that `settings` name, on their device.

    Raises:
        EngineUnavailable: there is no such checkpoint, or a file of it is missing.
    """
    torch.manual_seed(settings.seed)
    mimi, lm = _tiny(settings) if settings.location == TINY_RANDOM else _checkpoint(settings)
    return Models(mimi, lm, _twin(mimi))


def _tiny(settings: MoshiSettings) -> tuple[MimiModel, LMModel]:
    mimi = loaders.get_mimi(None, _TINY_MIMI, settings.device, num_codebooks=8)
    _enliven(mimi)
    lm = loaders.get_moshi_lm(
        None, {**_TINY_LM, **_overrides(settings)}, settings.device, torch.float32
    )
    return mimi, lm


def _enliven(mimi: MimiModel) -> None:
    """Make a random codec tell sounds apart: as moshi builds one, its biases drown them and its codebooks are zeros."""
    with torch.no_grad():
        for module in mimi.modules():
            if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
                module.weight *= _GAIN
                if module.bias is not None:
                    module.bias.zero_()
            elif hasattr(module, "embedding_sum"):  # a codebook
                module.embedding_sum.normal_(std=_SPREAD)


def _checkpoint(settings: MoshiSettings) -> tuple[MimiModel, LMModel]:
    checkpoint = Checkpoint(settings.location)
    lm = loaders.get_moshi_lm(
        checkpoint.file("lm"),
        checkpoint.lm_config,
        settings.device,
        getattr(torch, settings.dtype),
        lm_kwargs_overrides=_overrides(settings),
    )
    codebooks = max(lm.dep_q, lm.n_q - lm.dep_q)
    mimi = loaders.get_mimi(
        checkpoint.file("mimi"), checkpoint.mimi_config, settings.device, num_codebooks=codebooks
    )
    return mimi, lm


def _overrides(settings: MoshiSettings) -> dict[str, int]:
    return {} if settings.context_frames is None else {"context": settings.context_frames}


def _twin(mimi: MimiModel) -> MimiModel:
    """Another codec over the same weights: the encoder starts anew while the decoder goes on."""
    shared = [*mimi.parameters(), *mimi.buffers()]
    return copy.deepcopy(mimi, {id(tensor): tensor for tensor in shared})
