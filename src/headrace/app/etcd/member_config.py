"""Command line of the etcd member and client settings for etcd. Starts nothing.

`etcd_address` combines endpoints with the user and the certificates of the settings.
"""

from dataclasses import dataclass

from headrace.config.etcd_address import EtcdAddress, parse_endpoints
from headrace.config.settings import EVERY_INTERFACE, PORT_MAX, Settings, join_address, split_address
from headrace.model.errors import InvalidConfig


def etcd_address(settings: Settings, endpoints: tuple[str, ...] = ()) -> EtcdAddress:
    """Returns the client settings for these endpoints, or for those in `metadata`."""
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


# Distance from `rpc_addr` that avoids collisions between nodes of one host, whose ports are usually consecutive.
CLIENT_PORT_DISTANCE = 10_000
HEARTBEATS_PER_ELECTION_MIN = 5  # etcd rejects fewer
# A watcher that falls further behind reloads everything. Metadata records have a few hundred bytes: some megabytes.
REVISIONS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class MemberBootstrap:
    """How the member enters its cluster."""

    name: str
    state: str = ""  # "new": member of a bootstrap; "existing": joins a running cluster; empty: restart
    everybody: tuple[tuple[str, str], ...] = ()  # name and peer URL of each member
    token: str = ""  # cluster token of the bootstrap


@dataclass(frozen=True, slots=True)
class Addresses:
    peer_url: str  # advertised to the other members
    listen_peer_url: str
    client_url: str
    listen_client_url: str


def peer_url(settings: Settings, rpc_addr: str) -> str:
    host, port = split_address(rpc_addr)
    if host in EVERY_INTERFACE or not port:
        raise InvalidConfig(
            f"rpc_addr: the other nodes cannot connect to {rpc_addr}; set it to an address of this host with a port"
        )
    return f"{_scheme(settings)}://{join_address(host, port)}"


def client_address(settings: Settings) -> tuple[str, int]:
    """Returns host and port of the member's client endpoint; port 0 is any free one."""
    if settings.etcd.client_addr:
        return split_address(settings.etcd.client_addr)
    host, port = split_address(settings.cluster.rpc_addr)
    raised = port + CLIENT_PORT_DISTANCE
    return host, raised if raised <= PORT_MAX else 0


def addresses(settings: Settings, *, rpc_ip: str, client_ip: str, client_port: int) -> Addresses:
    """Returns listen and advertised URLs; etcd binds to IP addresses only, but advertises names as well."""
    scheme = _scheme(settings)
    rpc_host, rpc_port = split_address(settings.cluster.rpc_addr)
    client_host = client_address(settings)[0]
    told_host = rpc_host if client_host in EVERY_INTERFACE else client_host
    return Addresses(
        peer_url=peer_url(settings, settings.cluster.rpc_addr),
        listen_peer_url=f"{scheme}://{join_address(rpc_ip, rpc_port)}",
        client_url=f"{scheme}://{join_address(told_host, client_port)}",
        listen_client_url=f"{scheme}://{join_address(client_ip, client_port)}",
    )


def timers_ms(settings: Settings) -> tuple[int, int]:
    """Returns heartbeat interval and election timeout of the etcd member.

    etcd elects after one to two election timeouts without a heartbeat. If `election_timeout_max_ms` is less than
    twice `election_timeout_min_ms`, half of it is used. `etcd.election_timeout_cap_ms` bounds the result.
    """
    election_ms = min(requested_election_ms(settings), settings.etcd.election_timeout_cap_ms)
    heartbeat_ms_max = election_ms // HEARTBEATS_PER_ELECTION_MIN
    return max(1, min(settings.cluster.heartbeat_interval_ms, heartbeat_ms_max)), election_ms


def requested_election_ms(settings: Settings) -> int:
    """Returns the election timeout of `raft.*`, before the cap."""
    cluster = settings.cluster
    return min(cluster.election_timeout_min_ms, cluster.election_timeout_max_ms // 2)


def command_line(settings: Settings, folder: str, begin: MemberBootstrap, where: Addresses) -> list[str]:
    heartbeat_ms, election_ms = timers_ms(settings)
    flags = {
        "name": begin.name,
        "data-dir": folder,
        "listen-peer-urls": where.listen_peer_url,
        "initial-advertise-peer-urls": where.peer_url,
        "listen-client-urls": where.listen_client_url,
        "advertise-client-urls": where.client_url,
        "heartbeat-interval": str(heartbeat_ms),
        "election-timeout": str(election_ms),
        "pre-vote": "true",  # a member that was paused or partitioned does not depose the leader when it returns
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": str(REVISIONS_KEPT),
        "logger": "zap",
        "log-outputs": "stderr",
        "log-level": "error",  # a peer that is down would fill the disk with warnings
        **_beginning(begin),
        **_certificates(settings),
    }
    return [settings.etcd.program, *(f"--{name}={value}" for name, value in flags.items())]


def _beginning(begin: MemberBootstrap) -> dict[str, str]:
    if not begin.state:
        return {}
    flags = {
        "initial-cluster": ",".join(f"{name}={url}" for name, url in begin.everybody),
        "initial-cluster-state": begin.state,
    }
    return {**flags, "initial-cluster-token": begin.token} if begin.token else flags


def _certificates(settings: Settings) -> dict[str, str]:
    etcd = settings.etcd
    if not etcd.cert_file:
        return {}
    flags: dict[str, str] = {}
    for side in ("", "peer-"):
        flags |= {f"{side}cert-file": etcd.cert_file, f"{side}key-file": etcd.key_file}
        if etcd.ca_file:
            flags |= {f"{side}trusted-ca-file": etcd.ca_file, f"{side}client-cert-auth": "true"}
    return flags


def _scheme(settings: Settings) -> str:
    return "https" if settings.etcd.cert_file else "http"
