"""How tokens are drawn, in vLLM's terms."""

from functools import lru_cache
from typing import Any

from engine.work import Sampling

RULES = "metronome_rules"  # where `logits.TokenRulesProcessor` finds a request's rules


@lru_cache(maxsize=256)
def sampling_params(
    sampling: Sampling, decode: int, stop_token_ids: tuple[int, ...], schema: str = ""
) -> Any:
    """vLLM's form of how to draw the next `decode` tokens; `schema` is to be compiled for them.

    Raises:
        ValueError: a value is out of range.
    """
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    try:
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            extra_args={RULES: sampling.rules} if sampling.rules is not None else None,
            seed=sampling.seed,
            max_tokens=decode,
            stop_token_ids=list(stop_token_ids),
            ignore_eos=True,  # only the stop tokens asked for end a chunk
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            structured_outputs=StructuredOutputsParams(
                json=schema,
                disable_any_whitespace=True,  # a small model may fill its whole quota with spaces
            )
            if schema
            else None,
        )
    except VLLMValidationError as invalid:  # it is no ValueError
        raise ValueError(str(invalid)) from invalid
