"""The page in real headless Chromium, talking to the real server through a fake microphone."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import Page, chromium
from browser.conftest import padded, serving, write_microphone
from support.embedded import clip, embedded_files
from websockets.sync.client import connect

OUT = Path(__file__).parents[2] / "out"  # git-ignored; where the screenshot is looked for
STATE = "document.body.dataset.state"
VOICE = "Number(document.querySelector('#stage').dataset.audibleSamples ?? 0)"
NOTICE = "document.querySelector('#notice-words').textContent"


def state_is(state: str) -> str:
    return f"{STATE} === '{state}'"


def turn(role: str, status: str) -> str:
    """A condition: the transcript has such a turn, with words in it."""
    selector = f"#transcript li[data-role={role}][data-status={status}] .words"
    return f"document.querySelector('{selector}')?.textContent.trim().length > 3"


def words(page: Page, role: str) -> list[str]:
    """The words of a role's turns, in the order of the transcript."""
    selector = f"#transcript li[data-role={role}] .words"
    found = page.evaluate(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)")
    assert isinstance(found, list)
    return found


def sent(page: Page, kind: str) -> list[dict[str, Any]]:
    page.evaluate("0")  # takes in what Chromium has told since the last call
    return [event for event in page.sent if event["type"] == kind]


def sent_soon(page: Page, kind: str) -> bool:
    """True once such an event was sent; the page asks its speaker first how much was played."""
    looks = (page.evaluate("new Promise((resolve) => setTimeout(resolve, 50))") for _ in range(200))
    return any(sent(page, kind) for _ in looks)


STRIP_IS_DRAWN = """(() => {
  const strip = document.querySelector('#strip');
  const pixels = strip.getContext('2d').getImageData(0, 0, strip.width, strip.height).data;
  return Number(strip.dataset.ticks) > 3 && pixels.some((value, i) => i % 4 === 3 && value > 0);
})()"""


def test_a_spoken_turn(sim_server: str, tmp_path: Path) -> None:
    """A caller speaks: both sides are written down, the reply sounds, ticks are drawn; screenshot in out/."""
    microphone = write_microphone(tmp_path / "mic.wav", ("quiet", 1), ("speech", 1.5))
    with chromium(tmp_path / "profile", microphone) as page:
        page.open(sim_server)
        page.wait("document.querySelector('#model-quality').textContent === 'simulated'")
        page.click("#connect")
        page.wait(state_is("hearing"))
        page.wait(state_is("speaking"))
        page.wait(f"{turn('user', 'done')} && {VOICE} > 12_000")  # half a second of sound
        page.wait(turn("assistant", "streaming") + " || " + turn("assistant", "done"))
        page.wait(STRIP_IS_DRAWN)
        for folder in (tmp_path, OUT):
            page.screenshot(folder / "screenshot.png")
        page.screenshot(OUT / "screenshot-phone.png", width=390, height=844, dark=True)
        heard, said = words(page, "user"), words(page, "assistant")
        assert heard[0].startswith("speech lasting one point"), heard
        assert len(said) == 1
        assert page.errors == []


def test_barge_in(sim_server: str, tmp_path: Path) -> None:
    """The caller talks over the reply: it stops at once, and the server is told what was heard of it, no more."""
    parts = [("quiet", 1.0), ("speech", 1.5), ("quiet", 2.0), ("speech", 1.5)]
    with chromium(tmp_path / "profile", write_microphone(tmp_path / "mic.wav", *parts)) as page:
        page.open(sim_server)
        page.click("#connect")
        page.wait(state_is("speaking"))
        page.wait(turn("assistant", "interrupted"))
        heard = page.evaluate(VOICE)
        page.wait(f"{state_is('thinking')} || {state_is('speaking')}")
        truncations = sent(page, "conversation.item.truncate")
        assert len(truncations) == 1
        # The reply was audible for at most the pause between the two utterances, less the end-of-turn silence.
        assert 100 < truncations[0]["audio_end_ms"] < 2_000
        assert heard <= truncations[0]["audio_end_ms"] * 24 + 24 * 5
        page.wait("document.querySelectorAll('#transcript li[data-role=assistant]').length === 2")
        assert (
            sent(page, "response.cancel") == []
        )  # the server cancels by itself in hands-free mode
        assert page.errors == []


def test_push_to_talk(sim_server: str, tmp_path: Path) -> None:
    """The space bar held while speaking makes one turn; nothing is heard before or after."""
    microphone = write_microphone(tmp_path / "mic.wav", ("speech", 30))
    with chromium(tmp_path / "profile", microphone) as page:
        page.open(sim_server)
        page.click("input[value=push-to-talk] + span")
        page.click("#connect")
        page.wait(f"{state_is('listening')} && !document.querySelector('#talk').hidden")
        page.evaluate("document.activeElement.blur()")
        page.key("keyDown", " ", "Space")
        page.wait(state_is("hearing"))
        page.evaluate(
            "new Promise((resolve) => setTimeout(resolve, 1200))"
        )  # as long as one holds a button
        page.key("keyUp", " ", "Space")
        page.wait(f"{turn('user', 'done')} && {VOICE} > 0")
        # 1.2 s held and 0.2 s from before, on a machine that may be late to see the key
        assert words(page, "user")[0].startswith("speech lasting one point"), words(page, "user")
        kinds = [event["type"] for event in page.sent]
        assert kinds[-3:] == [
            "input_audio_buffer.clear",
            "input_audio_buffer.commit",
            "response.create",
        ]
        page.key("keyDown", " ", "Space")  # interrupts
        page.wait(turn("assistant", "interrupted"))
        assert sent_soon(page, "conversation.item.truncate")
        assert page.errors == []


def test_without_a_microphone_one_can_type(sim_server: str, tmp_path: Path) -> None:
    """A refused microphone is told in words, and a typed turn is answered aloud; Escape stops it."""
    with chromium(tmp_path / "profile", allow=False) as page:
        page.open(sim_server)
        page.click("#connect")
        page.wait(f"{state_is('listening')} && {NOTICE}.includes('microphone is blocked')")
        page.type("#message", "What do you see?")
        page.click("#send")
        page.wait(f"{state_is('speaking')} && {VOICE} > 2_400")
        assert words(page, "user") == ["What do you see?"]
        page.key("keyDown", "Escape", "Escape")
        page.wait(f"{state_is('listening')} && {turn('assistant', 'interrupted')}")
        # No cancel where the whole reply had been generated by then, and was only being played.
        assert len(sent(page, "response.cancel")) <= 1
        assert len(sent(page, "conversation.item.truncate")) == 1
        page.click("#connect")
        page.wait(state_is("idle"))
        assert page.errors == []


def test_a_full_server_is_told_and_tried_again(tmp_path: Path) -> None:
    """With every place taken the page says so, and gets in by itself once one is free."""
    quiet = write_microphone(tmp_path / "mic.wav")
    one_place = ("max_sessions = 512", "max_sessions = 1")
    with (
        serving("sim", tmp_path, change=one_place) as address,
        chromium(tmp_path / "profile", quiet) as page,
    ):
        page.open(address)
        with connect(address.replace("http", "ws") + "v1/realtime"):
            page.click("#connect")
            page.wait(f"{NOTICE}.includes('server is full')")
        page.wait(f"{state_is('listening')} && document.querySelector('#notice').hidden")


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    """A server with keys: the page says so, takes the key where the focus now is, and gets in."""
    quiet = write_microphone(tmp_path / "mic.wav")
    with (
        serving("sim", tmp_path, key="sesame-7") as address,
        chromium(tmp_path / "profile", quiet) as page,
    ):
        page.open(address)
        page.click("#connect")
        page.wait(f"{NOTICE}.includes('API key') && document.activeElement.id === 'key'")
        assert page.evaluate(STATE) == "idle"
        page.type("#key", "sesame-7")
        page.click("#connect")
        page.wait(
            f"{state_is('listening')} && document.querySelector('#strip').dataset.feed === 'live'"
        )
        assert page.evaluate("document.querySelector('#model-name').textContent") == "sim"


def test_controls_have_names_and_phones_need_no_sideways_scroll(static_page: Page) -> None:
    """Every control has an accessible name, and 320 px are wide enough."""
    nodes = static_page.call("Accessibility.getFullAXTree")["nodes"]
    controls = [
        node for node in nodes
        if node.get("role", {}).get("value") in ("button", "textbox", "radio") and not node["ignored"]
    ]  # fmt: skip
    names = [node["name"]["value"] for node in controls]
    assert {"Start a call", "Hands-free", "Push to talk", "Message", "Send"} <= set(names)
    assert all(names), json.dumps(controls)
    static_page.size(320, 640)
    assert static_page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.embedded
def test_a_human_voice_and_the_embedded_model(tmp_path: Path) -> None:
    """A recorded human is understood by the real stack, and answered aloud."""
    embedded_files()
    with (
        serving("embedded", tmp_path) as address,
        chromium(tmp_path / "profile", padded(clip("goforward"), tmp_path / "mic.wav")) as page,
    ):
        page.open(address)
        page.click("#connect")
        page.wait(f"{turn('user', 'done')} && {VOICE} > 12_000", timeout_s=60)
        page.wait(STRIP_IS_DRAWN)
        page.screenshot(OUT / "screenshot-embedded.png")
        assert "ten" in words(page, "user")[0].lower()
        assert page.errors == []
