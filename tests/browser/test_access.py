"""The page for people who see little, hear it read out, or have no mouse; and on a phone."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import Page, chromium
from browser.conftest import REPO, write_microphone
from browser.test_page import NOTICE, STATE, VOICE, sent_soon, state_is, turn, words

AXE = REPO / "tests/clients/node/node_modules/axe-core/axe.min.js"
LOOKS = {
    "light": {"width": 1280, "height": 800},
    "dark": {"width": 1280, "height": 800, "dark": True},
    "phone": {"width": 360, "height": 740},
}


def faults(page: Page, folder: Path, name: str) -> list[Any]:
    """What axe-core finds in the page as it is, of any impact: (look, rule, elements)."""
    page.evaluate(f"{AXE.read_text()}; 0")
    found = []
    for look, size in LOOKS.items():
        page.screenshot(folder / f"{name}-{look}.png", **size)  # type: ignore[arg-type]  # sizes and a flag
        violations = page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.map("
            "({id, impact, nodes}) => [id, impact, nodes.map((node) => node.target.join(' '))]))"
        )
        found += [(look, *violation) for violation in violations]
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.size(1280, 800)
    return found


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: run scripts/clients.sh")
def test_axe_finds_no_fault(sim_server: str, tmp_path: Path) -> None:
    """In light, dark and on a phone of 360 px: before a call, in it, after an interruption, with a message, typing."""
    parts = [("quiet", 1.0), ("speech", 1.5), ("quiet", 2.0), ("speech", 1.5)]
    with chromium(tmp_path / "profile", write_microphone(tmp_path / "mic.wav", *parts)) as page:
        page.size(1280, 800)
        page.open(sim_server)
        page.wait("document.querySelector('#model-quality').textContent === 'simulated'")
        assert faults(page, tmp_path, "idle") == []
        page.click("#connect")
        page.wait(turn("assistant", "interrupted"))
        page.wait("document.querySelectorAll('#transcript li[data-role=assistant]').length === 2")
        assert faults(page, tmp_path, "call") == []
        page.click("input[value=push-to-talk] + span")
        page.wait("!document.querySelector('#talk').hidden")
        page.click("#talk")  # too short: a message says so
        page.wait(f"{NOTICE}.includes('Hold the button')")
        assert faults(page, tmp_path, "message") == []
        assert page.errors == []


def tab_to(page: Page, element_id: str) -> None:
    """Press Tab until the element has the focus; at most once round the page."""
    for _ in range(20):
        page.press("Tab")
        if page.evaluate("document.activeElement.id") == element_id:
            return
    raise AssertionError(f"{element_id} cannot be reached")


def test_a_call_without_a_mouse(sim_server: str, tmp_path: Path) -> None:
    """Tab and Enter start a call, type a turn and end the call; the focus is seen; Escape stops the reply."""
    quiet = write_microphone(tmp_path / "mic.wav")
    with chromium(tmp_path / "profile", quiet) as page:
        page.open(sim_server)
        tab_to(page, "connect")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.press("Enter")
        page.wait(state_is("listening"))
        tab_to(page, "message")
        page.call("Input.insertText", text="What do you see?")
        page.press("Enter")
        page.wait(f"{state_is('speaking')} && {VOICE} > 2_400")
        page.key("keyDown", "Escape", "Escape")
        page.wait(turn("assistant", "interrupted"))
        assert sent_soon(page, "conversation.item.truncate")
        assert words(page, "user") == ["What do you see?"]
        tab_to(page, "connect")
        page.press("Enter")
        page.wait(state_is("idle"))
        assert page.errors == []


def test_what_is_said_is_read_out_once(sim_server: str, tmp_path: Path) -> None:
    """The state and each finished turn go through polite live regions; the words as they stream do not."""
    with chromium(tmp_path / "profile", write_microphone(tmp_path / "mic.wav")) as page:
        page.open(sim_server)
        regions = page.evaluate(
            "[...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].map((e) => e.id)"
        )
        assert sorted(regions) == ["announcer", "notice-words", "state"]
        page.evaluate(
            "window.told = []; new MutationObserver(() => told.push(document.querySelector('#announcer')"
            ".textContent)).observe(document.querySelector('#announcer'), {childList: true}); 0"
        )
        page.click("#connect")
        page.wait(state_is("listening"))
        page.type("#message", "Hello.")
        page.click("#send")
        page.wait(turn("assistant", "done"))
        told = page.evaluate("told")
        assert told[0] == "You: Hello."
        assert [line.split(":")[0] for line in told] == ["You", "Model"], json.dumps(told)


def test_the_last_words_stay_in_view_on_a_phone(sim_server: str, tmp_path: Path) -> None:
    """A message above the transcript makes it smaller; what was said last is still to be seen. All fits one screen."""
    with chromium(tmp_path / "profile", write_microphone(tmp_path / "mic.wav")) as page:
        page.size(360, 740)
        page.open(sim_server)
        page.click("#connect")
        page.wait(state_is("listening"))
        page.type("#message", "Hello.")
        page.click("#send")
        page.wait(turn("assistant", "done"))
        assert page.evaluate("document.documentElement.scrollHeight") <= 740
        at_end = (
            "(() => { const list = document.querySelector('#transcript');"
            " return list.scrollHeight - list.scrollTop - list.clientHeight < 2; })()"
        )
        assert page.evaluate("document.querySelector('#transcript').scrollTop") > 0
        page.wait(at_end)
        page.size(360, 660)
        page.wait(at_end)
        assert page.evaluate(STATE) in ("speaking", "listening")
