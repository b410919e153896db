"""ChatML for models that hear: a turn of the caller's can be opened and closed around audio."""

from pathlib import Path

from engine.models.chatml import ChatMl, Persona

# The system text that Qwen's audio models were tuned with.
QWEN_AUDIO_PERSONA = Persona(
    "You are a helpful assistant. Everything you write is spoken aloud: answer in one or two short sentences, "
    "without lists or markup."
)


class AudioChatMl(ChatMl):
    """`TurnTokens` over a model folder's tokenizer."""

    def __init__(self, folder: Path, persona: Persona = QWEN_AUDIO_PERSONA) -> None:
        super().__init__(folder, persona)
        self.folder = folder
        self.turn_opens = (self._open, *self._text("user\n"))
        self.turn_ends = (self._close, *self._newline)

    def words(self, text: str) -> tuple[int, ...]:
        """The tokens of a stretch of text within a turn."""
        return self._text(text)

    def control(self, name: str) -> int:
        """The id of a control token.

        Raises:
            ValueError: the tokenizer lacks it.
        """
        return self._control(name, self.folder)
