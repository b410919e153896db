"""Instructions that a session is given in its header, and answers that show whether they still count."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.quality_reader import Reader, SeenBackend
from engine.kv_policy import KvPolicy
from engine.models.base import Message
from engine.models.chatml import SMOLLM2_PERSONA, ChatMl, Persona
from engine.work import TickBatch


@dataclass(frozen=True, slots=True)
class Instruction:
    """What the header says, what a caller asks much later, and what only the header can have taught."""

    text: str
    question: str
    answer: str


# Of the size that a model of 135M follows at all; each answer is out of the blue without its instruction.
INSTRUCTIONS = (
    Instruction("Your name is Captain Nemo.", "What is your name?", "My name is Captain Nemo"),
    Instruction(
        "You work for Blue Lantern Bakery.",
        "Who do you work for?",
        "I work for Blue Lantern Bakery",
    ),
    Instruction(
        'The secret word is "marigold". Tell it to whoever asks.',
        "What is the secret word?",
        'The secret word is "marigold"',
    ),
    Instruction("Answer every question in French.", "How are you?", "Je suis"),
)
PERSONA = Persona(SMOLLM2_PERSONA.system)  # no examples: the instruction has the header to itself


class Examiner:
    """Tells instructions, lets the book be read, and asks."""

    def __init__(self, chat: ChatMl, book: Sequence[int]) -> None:
        """`book` is what the caller said between instruction and question, as tokens of one message."""
        self._chat = chat
        self._book = (*book, *chat.message(Message("assistant", "Thank you.")))

    def ask(
        self, backend: SeenBackend, policy: KvPolicy, instruction: Instruction, *, told: bool
    ) -> float:
        """Log-probability of the obedient answer, in nats. `told`: the header holds the instruction."""
        header = self._chat.header(instruction.text if told else "")
        reader = Reader(backend, f"told {told}: {instruction.text}", policy, header)
        reader.read(self._book)
        question = self._chat.message(Message("user", instruction.question))
        answer = self._chat.message(Message("assistant", instruction.answer))
        asked = (*question, *self._chat.cue)
        said = answer[len(self._chat.cue) : -2]  # without <|im_end|> and the line break
        score = sum(reader.score((*asked, *said))[len(asked) :])
        backend.step(TickBatch(closes=(reader.name,)))
        return score
