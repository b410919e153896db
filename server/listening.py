"""The listening socket: bound before anything is loaded, so that a taken port is known at once."""

import socket

from server.config import ServerConfig

# Kernel memory for what one client has not read. Linux grows it to 4 MB by default, which hid a minute of unread 20 ms
# audio from the outbox (measured); this much is 4 s of it.
_SEND_BUFFER_BYTES = 256 * 1024

_WILDCARDS = ("0.0.0.0", "::")


class CannotListen(RuntimeError):
    """The port is taken, or the address is not ours; the message says which."""


def bound_socket(server: ServerConfig) -> socket.socket:
    """A TCP socket bound as configured, not listening yet: until then connections are refused.

    Raises:
        CannotListen: it could not be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListen(f"cannot listen on {server.host}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise CannotListen(
            f"cannot listen on {server.host}:{server.port}: {error.strerror}"
        ) from None
    return sock


def addresses(server: ServerConfig, port: int) -> tuple[str, str]:
    """(WebSocket URL, page URL) to show to a person on this machine."""
    host = "127.0.0.1" if server.host in _WILDCARDS else server.host
    if ":" in host:
        host = f"[{host}]"
    secure = "s" if server.ssl_certfile else ""
    return (
        f"ws{secure}://{host}:{port}{server.paths[0]}",
        f"http{secure}://{host}:{port}",
    )
