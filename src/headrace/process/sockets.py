"""Ports that are reserved now and listened on later, by another process."""

import socket

LOOPBACK = "127.0.0.1"


def reserve_port(port: int, ip: str = LOOPBACK) -> socket.socket:
    """Reserves a port, any free one for 0, until the returned socket is closed, also while its user is down.

    While this socket is bound, the kernel uses the port for no outgoing connection: no other program gets it, and a
    client that retries cannot connect to itself. The socket never listens, so a server that shares the address
    (SO_REUSEADDR), as servers do, may listen beside it.
    """
    reservation = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
    try:
        if port:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((ip, port))
        # Only after binding: the free port was not shared when it was chosen, and may be shared from now on.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        reservation.close()
        raise
    return reservation
