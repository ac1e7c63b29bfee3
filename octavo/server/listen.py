"""The socket the server listens on. It is bound before the model is loaded, so that a taken port is known at once."""

from __future__ import annotations

import errno
import socket

from octavo.errors import ConfigError

_PORTS_TO_TRY = 100


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not listening yet; port 0 takes a free one. Raises `ConfigError` that says what would work."""
    try:
        return _bind(host, port)
    except socket.gaierror as error:
        raise ConfigError(
            f"--host {host} is not an address of this machine: {error.strerror}; 127.0.0.1 takes what comes from this "
            "machine, 0.0.0.0 from others too"
        ) from None
    except OverflowError:
        raise ConfigError(f"--port is {port}; ports are 0 to 65535") from None
    except OSError as error:
        raise ConfigError(_explain(error, host, port)) from None


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        free = _free_port_after(host, port)
        hint = "--port 0 takes a free one" if free is None else f"--port {free} is free"
        return f"port {port} of {host} is in use by another program; {hint}"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges this process does not have; ports from 1024 on do not"
    return f"--host {host} --port {port} cannot be used: {error.strerror}"


def _free_port_after(host: str, port: int) -> int | None:
    for candidate in range(port + 1, min(port + 1 + _PORTS_TO_TRY, 65536)):
        try:
            _bind(host, candidate).close()
        except OSError:
            continue
        return candidate
    return None
