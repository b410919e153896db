"""What the documents point at exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    """Links to files in the repository, without their anchors."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    missing = [
        link for link in links if "://" not in link and not (document.parent / link).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_command_is_a_target(document: Path) -> None:
    """A command that a reader would copy works."""
    commands = re.findall(r"(?:^\$ |`)make ([a-z]+)", document.read_text(), re.MULTILINE)
    assert set(commands) <= TARGETS


def test_the_python_in_the_readme_is_valid() -> None:
    """It compiles; the demo and the protocol tests show that the client calls work."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
