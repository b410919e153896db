"""Reads the server's /metrics, as far as a benchmark looks at it."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from bench.server_process import get

OUTCOMES = ("on_time", "late", "empty", "dropped")


@dataclass(frozen=True, slots=True)
class Scrape:
    """Some of the server's numbers at one instant."""

    ticks: Mapping[str, int]  # owed ticks so far, by outcome
    kv_held: int  # blocks
    kv_free: int  # blocks
    sessions: int

    def ticks_since(self, earlier: "Scrape") -> dict[str, int]:
        """Ticks by outcome between `earlier` and this."""
        return {outcome: self.ticks[outcome] - earlier.ticks[outcome] for outcome in OUTCOMES}


def read(text: str) -> Scrape:
    """The numbers in an exposition text; what is absent counts as 0."""
    ticks = dict.fromkeys(OUTCOMES, 0)
    blocks: dict[str, int] = {}
    sessions = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "metronome_ticks_total" and sample.labels["outcome"] in ticks:
                ticks[sample.labels["outcome"]] += int(sample.value)
            elif sample.name == "metronome_kv_blocks":
                blocks[sample.labels["state"]] = int(sample.value)
            elif sample.name == "metronome_sessions_active":
                sessions += int(sample.value)
    return Scrape(ticks, blocks.get("resident", 0), blocks.get("free", 0), sessions)


def scrape(port: int) -> Scrape:
    """The numbers now.

    Raises:
        OSError: nobody answers, or not with metrics.
    """
    status, text = get(port, "/metrics")
    if status != 200:
        raise OSError(f"/metrics answered {status}")
    return read(text)
