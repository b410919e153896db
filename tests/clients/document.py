"""docs/compatibility.md, made from what the clients reported."""

import textwrap
from collections.abc import Mapping
from typing import Any

from clients.judge import FEATURES, shows
from clients.stock import CLIENTS, HERE, ROOT, Client

DOCUMENT = ROOT / "docs/compatibility.md"

HEAD = """\
# Clients that work with Metronome

Written by `make clients`, which runs each client in the version shown, unchanged, against `metronome serve` over real
sockets, with `configs/sim.toml` and a door that admits whoever comes. "yes" means what a user would notice: audible
audio came, the words that were streamed are those the client keeps, its own history holds both sides in order.
`tests/clients/judge.py` is the definition, `tests/clients/programs/common.py` the conversation; `make test` fails when
this page is not what ran.
"""

FEATURE_NOTES = """\
* **typed turn**: a typed question, answered aloud. **spoken turn**: a recording of a person is streamed in; the server
  finds the end of the turn and transcribes it.
* **tool turn**: the server calls the client's function, with arguments decoded under the function's JSON schema, and
  answers its result. **barge-in**: the caller's voice interrupts an answer and is answered.
* **history**: what the client itself remembers afterwards. Words whose audio was never played are not in it: clients
  that count playback send `conversation.item.truncate`. **second session**: the same client connects again.
* **own VAD**: the server's turn detection is off, and the client commits, asks and cancels by what it hears itself.
  **Live**: OpenAI's Live protocol ([live.md](live.md)), which has tools by a second model only, and no typed turns but
  those that LiveKit makes of commentary.
"""

NOTES = """\
## Good to know

* Any `model` is accepted in the URL and the session says which one it got. Any voice is; unknown ones become the
  default voice.
* openai-node speaks TLS only, whatever its base URL says: start the server with `--ssl-certfile` and `--ssl-keyfile`,
  or put a proxy that terminates TLS before it.
* In a browser @openai/agents-realtime sends the key in a WebSocket subprotocol and takes ephemeral keys only: a server
  of yours gets one from `POST /v1/realtime/client_secrets` and gives it to the page.
* pipecat's realtime service transcribes the caller only if asked to (`InputAudioTranscription` in its session
  properties), and puts messages that an application appends into the conversation as the system's.
* Clients of the beta protocol (`OpenAI-Beta: realtime=v1`) are closed with 4000 and told why.
"""


def written(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The document for these reports, by client."""
    clients = [CLIENTS[name] for name in CLIENTS if name in reports]
    columns = ["client", "version", "over", *FEATURES]
    rows = [columns, ["---"] * len(columns)]
    for client in clients:
        report = reports[client.name]
        marks = [_mark(client, report, feature) for feature in FEATURES]
        over = "wss" if client.tls else "ws"
        rows.append([client.name, str(report.get("version", "?")), over, *marks])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    samples = "\n".join(sample(client) for client in clients if not client.options)
    how = f"## How each is pointed at Metronome\n\n{samples}"
    return "\n".join((HEAD, table, "", FEATURE_NOTES, how, NOTES))


def _mark(client: Client, report: Mapping[str, Any], feature: str) -> str:
    if feature in client.lacks:
        return "–"
    return "yes" if shows(report, feature) else "**no**"


def sample(client: Client) -> str:
    """The lines of the client's program that point it here."""
    language = "python" if client.is_python else "javascript"
    comment = "#" if client.is_python else "//"
    text = (HERE / client.program).read_text()
    _, _, rest = text.partition(f"{comment} region: how to point it here\n")
    region, _, _ = rest.partition(f"{comment} endregion")
    lines = textwrap.dedent(region.rstrip(" \n"))
    name = client.name.partition(" (Node)")[0]
    return f"### {name}\n\n```{language}\n{lines}\n```\n"
