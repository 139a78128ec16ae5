"""The listening socket."""

import errno
import socket

BACKLOG = 512


def check_address(host: str, port: int) -> None:
    """Raise OSError if `listen` could not have this address now."""
    listen(host, port).close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; port 0 takes a free one.

    Raises OSError, saying what to do, when the address can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise OSError(error.errno, f"can't listen on {host} port {port}: {error}") from None
        advice = f"try --port {port % 65535 + 1}, or --port 0 for any"
        raise OSError(error.errno, f"port {port} on {host} is in use: {advice}") from None
    # Accepted connections inherit it: events of a stream must not wait for each other.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """Its URL, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
