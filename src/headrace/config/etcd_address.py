"""Address and credentials of an etcd cluster: `etcd://host:port,host:port/namespace`, user, certificates."""

from dataclasses import dataclass

from headrace.config.settings import join_address, split_address
from headrace.model.errors import InvalidConfig

SCHEME = "etcd://"
DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    endpoints: tuple[str, ...]  # host:port, tried in this order
    namespace: str = ""  # prefix of every key: several clusters can share one etcd
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    @property
    def uses_tls(self) -> bool:
        return bool(self.ca_file or self.cert_file)


def parse_endpoints(text: str) -> tuple[tuple[str, ...], str]:
    """Parses `etcd://host:port,host:port/namespace`."""
    if not text.startswith(SCHEME):
        raise InvalidConfig(f"{text!r} is not an etcd; write {SCHEME}host:port,host:port")
    if "@" in text:
        raise InvalidConfig(
            "metadata: user and password do not stand in the address; use etcd.user, etcd.password_file"
        )
    hosts, _, namespace = text[len(SCHEME) :].partition("/")
    endpoints = tuple(_endpoint(item.strip()) for item in hosts.split(","))
    namespace = namespace.strip("/")
    return endpoints, f"/{namespace}" if namespace else ""


def _endpoint(text: str) -> str:
    if text and ":" not in text.rpartition("]")[2]:
        text = f"{text}:{DEFAULT_PORT}"
    host, port = split_address(text)
    if not host or not port:
        raise InvalidConfig(f"metadata: {text!r} names no host and port to connect to")
    return join_address(host, port)


def target_of(url: str) -> str:
    """Returns host:port of a member's http(s) address."""
    return url.partition("://")[2].partition("/")[0]
