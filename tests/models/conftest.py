"""The embedded language model's tokenizer, loaded once."""

import pytest
from support.embedded import embedded_files

from engine.models.chatml import SMOLLM2_PERSONA, ChatMl


@pytest.fixture(scope="session")
def smollm2() -> ChatMl:
    pytest.importorskip("tokenizers")
    return ChatMl(embedded_files().llm, SMOLLM2_PERSONA)
