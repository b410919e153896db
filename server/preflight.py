"""What can be found out before a model is loaded: files, certificate, port.

A configuration may be checked on another machine than the one it is for, so none of this belongs to
reading it.
"""

import errno
import socket
import ssl
from pathlib import Path

from server.config import Config, Problem


def file_problems(config: Config) -> list[Problem]:
    """What `config` points at and this machine does not have: certificate, key list, model."""
    problems: list[Problem] = []
    for key in ("ssl_certfile", "ssl_keyfile", "api_keys_file"):
        name = getattr(config.server, key)
        if name is not None and not Path(name).expanduser().is_file():
            problems.append(Problem(f"server.{key}", f"no such file: {name}"))
    if config.model.family == "cascade":
        key = "model.id" if config.model.id != "embedded" else "model.llm"
        problem = _folder_problem(config.model.llm_id)
        problems += [Problem(key, problem)] if problem else []
    return problems


def _folder_problem(name: str) -> str | None:
    """Why `name` is not a model folder; None if it is one, or is not a folder's name at all."""
    folder = Path(name).expanduser()
    if not (name.startswith(("/", ".", "~")) or folder.is_dir()):
        return None
    if not folder.is_dir():
        return f"no such folder: {name}"
    # Mistral's own format has params.json instead.
    if not any((folder / name).is_file() for name in ("config.json", "params.json")):
        return f"not a model folder (it has no config.json): {name}"
    return None


def certificate_problem(config: Config) -> str | None:
    """Why TLS cannot be served with the configured files; None if it can, or is off."""
    if config.server.ssl_certfile is None or config.server.ssl_keyfile is None:
        return None
    cert = Path(config.server.ssl_certfile).expanduser()
    key = Path(config.server.ssl_keyfile).expanduser()
    try:
        # With no password given OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        why = getattr(error, "reason", None) or error.strerror or str(error)
        return f"cannot serve TLS with {cert} and {key}: {why.lower().replace('_', ' ')}"
    return None


def port_problem(host: str, port: int) -> str | None:
    """Why nothing can listen there now; None if it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server itself will: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} on {host} is in use; choose another with --port, or 0 for any"
        return f"cannot listen on {host} port {port}: {error.strerror}"
    return None
