"""What a node is told about its cluster: who founds it, where its facts live, how to get into etcd.

Decides what a valid description of a cluster is, from checked texts; looks at no file and no network.
"""

from collections.abc import Mapping

from headrace.metadata.etcd.address import SCHEME, parse_endpoints
from headrace.model.errors import InvalidConfig
from headrace.model.node_configs import NODE_CONFIGS
from headrace.model.settings import (
    ClusterSettings,
    EtcdSettings,
    Member,
    Settings,
    split_address,
)

_MEMBERS = "cluster.initial_members"
UNIX_SCHEME = "unix://"


class Refused(Exception):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def text_of(texts: Mapping[str, str], key: str) -> str:
    return texts.get(key) or NODE_CONFIGS[key].default_text or ""


def metadata_of(texts: Mapping[str, str]) -> str:
    text = texts.get("metadata", "")
    if not text or (text.startswith(UNIX_SCHEME) and text[len(UNIX_SCHEME) :].startswith("/")):
        return text
    if not text.startswith(SCHEME):
        raise Refused("metadata", f"metadata: {text!r} is neither {SCHEME}host:port,… nor {UNIX_SCHEME}/path")
    try:
        parse_endpoints(text)
    except InvalidConfig as error:
        raise Refused("metadata", f"metadata: {error}") from None
    return text


def cluster_of(texts: Mapping[str, str]) -> ClusterSettings:
    members = tuple(_member(item) for item in texts.get(_MEMBERS, "").split(",") if item)
    _check_members(members)
    node_id = int(texts.get("node.id", Settings().node_id))
    own = next((member for member in members if member.node_id == node_id), None)
    rpc_addr = texts.get("rpc_addr") or (own.rpc_addr if own is not None else text_of(texts, "rpc_addr"))
    cluster = ClusterSettings(
        rpc_addr=rpc_addr,
        initial_members=members,
        bootstrap=text_of(texts, "cluster.bootstrap") == "true",
        heartbeat_interval_ms=int(text_of(texts, "raft.heartbeat_interval_ms")),
        election_timeout_min_ms=int(text_of(texts, "raft.election_timeout_min_ms")),
        election_timeout_max_ms=int(text_of(texts, "raft.election_timeout_max_ms")),
    )
    _address("rpc_addr", cluster.rpc_addr)
    if own is not None and own.rpc_addr != rpc_addr:
        raise Refused("rpc_addr", f"rpc_addr is {rpc_addr}, but {_MEMBERS} gives node {node_id} {own.rpc_addr}")
    if cluster.bootstrap and members and own is None:
        raise Refused(
            "cluster.bootstrap",
            f"cluster.bootstrap: node {node_id} is not among {_MEMBERS}, so it cannot found the cluster",
        )
    _check_timers(cluster)
    return cluster


def etcd_of(texts: Mapping[str, str]) -> EtcdSettings:
    client_addr = texts.get("etcd.client_addr", "")
    if client_addr:
        _address("etcd.client_addr", client_addr)
    etcd = EtcdSettings(
        program=text_of(texts, "etcd.program"),
        client_addr=client_addr,
        election_timeout_cap_ms=int(text_of(texts, "etcd.election_timeout_cap_ms")),
        user=texts.get("etcd.user", ""),
        password_file=texts.get("etcd.password_file", ""),
        ca_file=texts.get("etcd.ca_file", ""),
        cert_file=texts.get("etcd.cert_file", ""),
        key_file=texts.get("etcd.key_file", ""),
    )
    if bool(etcd.user) != bool(etcd.password_file):
        raise Refused("etcd.user", "etcd.user and etcd.password_file belong together; set both or none")
    if bool(etcd.cert_file) != bool(etcd.key_file):
        raise Refused("etcd.cert_file", "etcd.cert_file and etcd.key_file belong together; set both or none")
    return etcd


def _check_members(members: tuple[Member, ...]) -> None:
    for what in ("node_id", "api_addr", "rpc_addr"):
        values = [str(getattr(member, what)) for member in members]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise Refused(_MEMBERS, f"{_MEMBERS}: two members have the {what} {twice}; give each its own")


def _check_timers(cluster: ClusterSettings) -> None:
    if not cluster.heartbeat_interval_ms < cluster.election_timeout_min_ms <= cluster.election_timeout_max_ms:
        raise Refused(
            "raft.election_timeout_min_ms",
            "raft: heartbeat_interval_ms must be less than election_timeout_min_ms, and that at most "
            "election_timeout_max_ms",
        )


def _member(text: str) -> Member:
    parts = text.split("@")
    if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
        raise Refused(_MEMBERS, f"{_MEMBERS}: {text!r} is not node_id@api_addr@rpc_addr")
    for address in parts[1:]:
        _address(_MEMBERS, address)
    return Member(node_id=int(parts[0]), api_addr=parts[1], rpc_addr=parts[2])


def _address(key: str, text: str) -> None:
    try:
        split_address(text)
    except InvalidConfig as error:
        raise Refused(key, f"{key}: {error}") from None
