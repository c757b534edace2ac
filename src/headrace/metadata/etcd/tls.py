"""TLS contexts for the connections to etcd: trusted authorities and the client certificate."""

import ssl

from headrace.config.etcd_address import EtcdAddress
from headrace.metadata.etcd.grpc_client.http2 import ALPN
from headrace.model.errors import InvalidConfig


def tls_context(address: EtcdAddress) -> ssl.SSLContext:
    """Returns the context. The member's certificate must contain the requested host name."""
    context = client_context(address.ca_file, address.cert_file, address.key_file)
    context.set_alpn_protocols([ALPN])
    return context


def client_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """Returns the context. Raises InvalidConfig, with the setting and its file, if a file cannot be used."""
    for path in (ca_file, cert_file, key_file):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
        else:
            context.load_default_certs()
    except ssl.SSLError as error:
        raise InvalidConfig(f"etcd.ca_file: {ca_file} cannot be used: {error}") from None
    try:
        if cert_file:
            # Without a password OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(cert_file, key_file or None, password="")
    except ssl.SSLError as error:
        key = f" with etcd.key_file: {key_file}" if key_file else ""
        raise InvalidConfig(f"etcd.cert_file: {cert_file}{key} cannot be used: {error}") from None
    return context


def _check_readable(path: str) -> None:
    """Raises the error with the file name, which OpenSSL's errors lack."""
    if not path:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
