"""The page while its server goes away and comes back."""

from pathlib import Path

from browser.chromium import chromium
from browser.conftest import REPO, write_microphone
from browser.test_page import NOTICE, VOICE, state_is, words

from bench.server_process import ServerProcess, free_port, metronome

HINT = "document.querySelector('#hint').textContent"


def test_the_call_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Said in words, tried again at longer and longer intervals or at once on request, with the conversation so far."""
    port = free_port()
    config = str(REPO / "configs/sim.toml")
    command = metronome("serve", "--config", config, "--port", str(port))
    with chromium(tmp_path / "profile", write_microphone(tmp_path / "mic.wav")) as page:
        with ServerProcess(command, port, tmp_path / "first.log") as server:
            server.wait_ready()
            page.open(f"http://127.0.0.1:{port}/")
            page.click("#connect")
            page.wait(state_is("listening"))
            page.type("#message", "Tell me something.")
            page.click("#send")
            page.wait(f"{state_is('speaking')} && {VOICE} > 2_400")
        page.wait(f"{NOTICE}.includes('restarting') || {NOTICE}.includes('cannot be reached')")
        page.wait(f"{NOTICE}.includes('Trying again in 4 s')")  # after 1 s, 2 s
        assert page.evaluate(HINT) == "Waiting to try again."
        assert page.evaluate("document.querySelector('#message').disabled")
        with ServerProcess(command, port, tmp_path / "second.log") as server:
            server.wait_ready()
            page.click("#retry")
            page.wait(f"{state_is('listening')} && document.querySelector('#notice').hidden")
            page.wait("document.querySelector('#strip').dataset.feed === 'live'")
            page.type("#message", "And now?")
            page.click("#send")
            page.wait(f"{state_is('speaking')}")
            assert words(page, "user") == ["Tell me something.", "And now?"]
        replayed = [
            event["item"]["content"][0]["text"]
            for event in page.sent
            if event["type"] == "conversation.item.create"
        ]
        assert replayed[0] == replayed[1] == "Tell me something."
        assert replayed[-1] == "And now?"
