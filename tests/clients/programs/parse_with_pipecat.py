"""Has pipecat's own parser read every event in a file; prints those it refuses, one JSON text a line."""

import json
import sys
from pathlib import Path

from pipecat.services.openai.realtime.events import parse_server_event

for text in Path(sys.argv[1]).read_text().splitlines():
    try:
        parsed = parse_server_event(text)
        complaint = None if parsed is not None else "unknown type"
    except Exception as error:  # noqa: BLE001  # pipecat raises bare ones
        complaint = str(error)[:500]
    if complaint:
        line = {"type": json.loads(text)["type"], "complaint": complaint}
        sys.stdout.write(f"{json.dumps(line)}\n")
