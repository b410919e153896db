"""The tiny random Llama of the benchmarks, under the name that tests know it by."""

from bench.tiny_model import VOCAB, write_tiny_llama

__all__ = ["VOCAB", "write_tiny_llama"]
