"""Certificates for the connections to etcd: which authority is trusted, and what we show."""

import ssl

from headrace.metadata.etcd.address import EtcdAddress
from headrace.metadata.etcd.http2 import ALPN
from headrace.model.errors import InvalidConfig


def tls_context(address: EtcdAddress) -> ssl.SSLContext:
    """The member's certificate must name the host that was asked for."""
    for path in (address.ca_file, address.cert_file, address.key_file):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([ALPN])
    try:
        if address.ca_file:
            context.load_verify_locations(address.ca_file)
        else:
            context.load_default_certs()
        if address.cert_file:
            # Without a password here OpenSSL would ask for one on the terminal.
            context.load_cert_chain(address.cert_file, address.key_file or None, password="")
    except ssl.SSLError as error:
        raise InvalidConfig(f"the certificates for etcd cannot be used: {error}") from None
    return context


def _check_readable(path: str) -> None:
    """OpenSSL does not say which file it could not open."""
    if not path:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
