"""Ports that are chosen now and listened on later, by another process."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port(port: int, ip: str = LOOPBACK) -> socket.socket:
    """A port, any free one for 0, that is nobody else's until the socket is closed: also while its user is down.

    As long as this socket is bound, the kernel gives the port to no outgoing connection: neither can a stranger take
    it, nor can a client that retries connect to itself. It never listens, so whoever asks to share the address
    (SO_REUSEADDR), as servers do, may listen beside it.
    """
    reservation = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    try:
        if port:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((ip, port))
        # Only after binding: a free port was chosen that nobody shares, and from now on one may share it.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        reservation.close()
        raise
    return reservation
