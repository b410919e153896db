"""Who listens beside a frame-locked model, for what clients want to know of their caller."""

from dataclasses import dataclass, replace

from engine.models.base import SessionSetup
from engine.models.turn_hearing import TurnHearing

NO_TRANSCRIBER = "This server has no transcriber beside its model (model.stt is 'none')."


@dataclass(frozen=True, slots=True)
class Bystander:
    """Of a deployment; shared by its calls."""

    hearing: TurnHearing
    detects: bool = True  # it has voice activity detection; without it only commits make turns
    transcribes: bool = True

    def setup_of(self, setup: SessionSetup) -> SessionSetup:
        """What of a session's settings applies beside a model that takes turns by itself.

        Nobody is asked to speak after a while of silence, and where there are no words they end no turn.
        """
        detection = setup.turn_detection
        detection = replace(
            detection,
            enabled=detection.enabled and self.detects,
            idle_timeout_ms=None,
            eagerness=detection.eagerness if self.transcribes else None,
        )
        return replace(setup, turn_detection=detection)
