"""How this node gets into etcd: the addresses, with the user and the certificates of its settings."""

from headrace.metadata.etcd.address import EtcdAddress, parse_endpoints
from headrace.model.errors import InvalidConfig
from headrace.model.settings import Settings


def etcd_address(settings: Settings, endpoints: tuple[str, ...] = ()) -> EtcdAddress:
    """To these endpoints, or to those that `metadata` names."""
    namespace = ""
    if not endpoints:
        endpoints, namespace = parse_endpoints(settings.metadata)
    etcd = settings.etcd
    return EtcdAddress(
        endpoints=endpoints,
        namespace=namespace,
        user=etcd.user,
        password=_first_line(etcd.password_file),
        ca_file=etcd.ca_file,
        cert_file=etcd.cert_file,
        key_file=etcd.key_file,
    )


def _first_line(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"etcd.password_file: cannot read {path}: {error}") from None
