"""Settings from file, environment and flags: whose word counts, and what is refused with which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.keys.node import find_config, known_names
from headrace.config.loader import SettingsError, environment_name, load_settings
from headrace.config.settings import Listener, Member

SEED_FILE = """\
# Node identity
node_id: 1
api_addr: "127.0.0.1:9092"
rpc_addr: "127.0.0.1:19092"
storage_path: "./data/broker-1"
cluster:
  initial_members:
    - node_id: 1
      api_addr: "127.0.0.1:9092"
      rpc_addr: "127.0.0.1:19092"
  bootstrap: true
raft:
  heartbeat_interval_ms: 1000
  election_timeout_min_ms: 3000
  election_timeout_max_ms: 6000
host: 0.0.0.0
port: 8080
default_partitions: 4
default_replication_factor: 1
default_retention_seconds: 604800
default_retention_bytes: 1_073_741_824
acks: leader
retries: 3
retry_backoff_ms: 100
max_poll_records: 500
session_timeout_ms: 30000
request_timeout_ms: 30000
storage: memory
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> str:
        path = tmp_path / "headrace.yaml"
        path.write_text(text)
        return str(path)

    return write_file


def flag(key: str, value: str) -> tuple[str, str, str]:
    return key, value, f"--set {key}={value}: "


def problems(file=None, environment=None, flags=()):
    with pytest.raises(SettingsError) as refused:
        load_settings(file, environment or {}, flags)
    return refused.value.problems


def test_nothing_said_gives_the_defaults():
    settings = load_settings(None, {}).settings
    assert settings.listeners == (Listener("PLAINTEXT", "localhost", 9092),)
    assert (settings.node_id, settings.data_dir, settings.storage) == (1, "./data", "disk")
    assert settings.broker_configs == {}
    assert settings.config("num.partitions") == 4


def test_a_file_with_every_key_of_headraces_own_is_understood(write):
    settings = load_settings(write(SEED_FILE), {}).settings
    assert settings.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    assert (settings.data_dir, settings.storage, settings.node_id) == ("./data/broker-1", "memory", 1)
    assert settings.cluster.initial_members == (
        Member(node_id=1, api_addr="127.0.0.1:9092", rpc_addr="127.0.0.1:19092"),
    )
    assert settings.cluster.bootstrap
    assert settings.cluster.election_timeout_max_ms == 6000
    assert (settings.gateway.host, settings.gateway.port, settings.gateway.acks) == ("0.0.0.0", 8080, "leader")
    assert settings.config("log.retention.ms") == 604_800_000
    assert settings.config("log.retention.bytes") == 2**30
    assert settings.config("request.timeout.ms") == 30_000


def test_a_listed_node_runs_etcd_and_another_uses_it(write):
    text = "node_id: {}\ncluster.initial_members: 1@a:1@a:2,2@b:1@b:2\n"
    listed = load_settings(write(text.format(2)), {}).settings
    assert (listed.is_clustered, listed.runs_etcd, listed.cluster.rpc_addr) == (True, True, "b:2")
    other = load_settings(write(text.format(3)), {}).settings
    assert (other.is_clustered, other.runs_etcd) == (True, False)
    named = load_settings(write(text.format(2) + "metadata: etcd://c:2379\n"), {}).settings
    assert (named.is_clustered, named.runs_etcd) == (True, False)
    assert not load_settings(None, {}).settings.is_clustered


def test_cap_of_the_election_timeout_is_read_from_the_file(write):
    assert load_settings(None, {}).settings.etcd.election_timeout_cap_ms == 1000
    settings = load_settings(write("etcd: {election_timeout_cap_ms: 5000}\n"), {}).settings
    assert settings.etcd.election_timeout_cap_ms == 5000


def test_kafkas_names_work_flat_and_nested(write):
    text = "node.id: 2\nlisteners: ['PLAINTEXT://:9092', 'INTERNAL://[::1]:9093']\nlog: {retention: {hours: 72}}\n"
    text += "listener.security.protocol.map: PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT\nlog.dirs: /tmp/x\n"
    settings = load_settings(write(text), {}).settings
    assert settings.node_id == 2
    assert settings.listeners == (Listener("PLAINTEXT", "", 9092), Listener("INTERNAL", "::1", 9093))
    assert settings.config("log.retention.hours") == 72
    assert settings.broker_configs["log.dirs"] == "/tmp/x"


def test_flags_count_before_the_environment_and_that_before_the_file(write):
    file = write("num.partitions: 1\nnode_id: 1\nmessage.max.bytes: 1000\n")
    environment = {"HEADRACE_NUM_PARTITIONS": "2", "HEADRACE_NODE_ID": "2"}
    settings = load_settings(file, environment, [flag("num.partitions", "3")]).settings
    assert settings.config("num.partitions") == 3
    assert settings.node_id == 2
    assert settings.config("message.max.bytes") == 1000


def test_a_stronger_source_counts_also_under_another_name_or_unit(write):
    file = write("default_retention_seconds: 5\ndefault_partitions: 1\n")
    environment = {"HEADRACE_NUM_PARTITIONS": "2"}
    settings = load_settings(file, environment, [flag("log.retention.hours", "1")]).settings
    assert settings.config("num.partitions") == 2
    assert "log.retention.ms" not in settings.broker_configs, "the file's word would count as the finer unit"
    assert settings.config("log.retention.hours") == 1


def test_the_last_of_a_repeated_flag_counts():
    flags = [flag("num.partitions", "3"), flag("num.partitions", "5")]
    assert load_settings(None, {}, flags).settings.config("num.partitions") == 5


def test_the_config_file_can_be_named_by_the_environment(write):
    file = write("node_id: 9\n")
    assert load_settings(None, {"HEADRACE_CONFIG": file}).settings.node_id == 9


def test_who_said_what_is_remembered(write):
    file = write("\nnode_id: 9\n")
    heard = load_settings(file, {"HEADRACE_DEFAULT_PARTITIONS": "2"}).heard
    assert heard["node.id"].said.where == f"{file} line 2: "
    assert heard["num.partitions"].said.where == "environment variable HEADRACE_DEFAULT_PARTITIONS: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("num_partition: 1", "line 1: unknown key num_partition; did you mean num.partitions?"),
        ("\n\ndefault_partition: 1", "line 3: unknown key default_partition; did you mean default_partitions?"),
        ("bootstrap: true", "did you mean cluster.bootstrap?"),
        ("retention.ms: 1", "a key of topics, not of nodes; the default for all topics is log.retention.ms"),
        ("process.roles: broker", "every headrace node is broker and controller"),
        ("zookeeper.connect: x", "needs no ZooKeeper"),
        ("ssl.keystore.location: x", "PLAINTEXT only"),
        ("xyzzy: 1", "`headrace config docs` lists all keys"),
        ("num.partitions: many", "Invalid value 'many' for configuration num.partitions"),
        ("num.partitions: 0", "must be at least 1"),
        ("num.partitions:", "num.partitions has no value"),
        ("storage: dsk", "did you mean disk?"),
        ("node_id: 1\nnode_id: 1", "line 2: node_id stands on line 1 already"),
        ("node_id: [1", "not valid YAML"),
        ("- node_id", "a config file is a list of `key: value` lines"),
        ("{[a]: 1}", "a key is a plain word"),
        ("a: &x 1\nnode_id: *x", "references (*name) are not supported"),
        ("cluster: {initial_members: [{node_id: 1}]}", "a member has node_id, api_addr, rpc_addr"),
        ("node_id: [[1]]", "cannot be nested like this"),
        ("listeners: ['A://h:1,B://h:2']", "holds a comma"),
        ("{a: " * 20 + "1" + "}" * 20, "nested deeper than 16 levels"),
        ("log.dirs: /a,/b", "exactly one data directory"),
        ("listeners: ''", "listeners is empty"),
        ("listeners: localhost:9092", "write NAME://host:port"),
        ("listeners: SSL://:9092", "would speak SSL"),
        ("listeners: INTERNAL://:9092", "INTERNAL is not in listener.security.protocol.map"),
        ("listeners: PLAINTEXT://:1,PLAINTEXT://:2", "have the same name"),
        ("listener.security.protocol.map: PLAINTEXT", "write NAME:PROTOCOL pairs"),
        ("advertised.listeners: OTHER://h:1", "no listener is called OTHER"),
        ("advertised.listeners: PLAINTEXT://0.0.0.0:9092", "clients cannot connect to"),
        ("advertised.listeners: PLAINTEXT://a:1,PLAINTEXT://b:1", "one name stands twice"),
        ("inter.broker.listener.name: X", "no listener is called X"),
        ("rpc_addr: nowhere", "rpc_addr: 'nowhere' is not an address"),
        ("raft.heartbeat_interval_ms: 5000", "must be less than election_timeout_min_ms"),
        ("cluster.initial_members: 1@a:1@a:2,2@a:1@b:2", "two members have the api_addr a:1"),
        ("cluster.initial_members: 1@a:1@a:2,2@b:1@a:2", "two members have the rpc_addr a:2"),
        ("cluster.initial_members: 1@a:1@a:2,1@b:1@b:2", "two members have the node_id 1"),
        ("cluster.initial_members: 1@a:1@a:2\nrpc_addr: a:3", "gives node 1 a:2"),
        ("cluster.initial_members: 2@a:1@a:2\ncluster.bootstrap: true", "it cannot found the cluster"),
        ("raft.election_timeout_min_ms: 60000\nraft.election_timeout_max_ms: 90000", "election_timeout_min_ms"),
        ("etcd.election_timeout_cap_ms: 9", "etcd.election_timeout_cap_ms"),
        ("etcd.election_timeout_cap_ms: 50001", "etcd.election_timeout_cap_ms"),
        ("metadata: zookeeper:2181", "is neither etcd://"),
        ("metadata: unix://relative.sock", "is neither etcd://"),
        ("metadata: etcd://me:secret@host:2379", "etcd.password_file"),
        ("etcd.user: me", "etcd.user and etcd.password_file belong together"),
        ("etcd.cert_file: a.pem", "etcd.cert_file and etcd.key_file belong together"),
        ("etcd.client_addr: nowhere", "etcd.client_addr: 'nowhere' is not an address"),
        ("cluster.initial_members: somebody", "is not node_id@api_addr@rpc_addr"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(write, text, reason):
    assert reason in "\n".join(problems(write(text)))


def test_problems_of_the_final_settings_name_their_line_too(write):
    (problem,) = problems(file := write("node_id: 1\nlog.dirs: /a,/b\n"))
    assert problem.startswith(f"{file} line 2: ")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("num.partitions: 1\ndefault_partitions: 2\n", ("num.partitions=1", "default_partitions=2", "line 1")),
        ("node_id: 1\nbroker.id: 2\n", ("node_id=1", "broker.id=2")),
        ("log.dirs: /a\nstorage_path: /b\n", ("log.dirs=/a", "storage_path=/b")),
        ("api_addr: h:1\nlisteners: PLAINTEXT://h:2\n", ("api_addr=h:1", "listeners=PLAINTEXT://h:2")),
        ("default_retention_seconds: 5\nlog.retention.hours: 1\n", ("default_retention_seconds=5", "hours=1")),
        ("log.roll.ms: 5\nlog.roll.hours: 1\n", ("log.roll.ms=5", "log.roll.hours=1")),
    ],
)  # fmt: skip
def test_the_same_thing_said_twice_differently_is_refused_naming_both(write, text, names):
    (problem,) = problems(write(text))
    assert "both mean the same; keep one" in problem
    for name in names:
        assert name in problem


def test_the_same_thing_said_twice_alike_is_fine(write):
    text = "num.partitions: 2\ndefault_partitions: 2\ndefault_retention_seconds: 3600\nlog.retention.hours: 1\n"
    text += "api_addr: h:1\nlisteners: PLAINTEXT://h:1\n"
    assert load_settings(write(text), {}).settings.config("num.partitions") == 2


def test_everything_wrong_is_told_at_once(write):
    found = problems(write("num.partitons: 1\nnode_id: x\n"), {"HEADRACE_NODEID": "1"}, [flag("acks", "some")])
    assert len(found) == 4
    assert "environment variable HEADRACE_NODEID: no such key; did you mean HEADRACE_NODE_ID?" in found


@pytest.mark.parametrize(
    "variable", ["HEADRACE_BOOTSTRAP", "HEADRACE_PIPELINES", "HEADRACE_SQL", "HEADRACE_SPARK_PYTHON"]
)
def test_what_the_environment_tells_others_is_no_setting_of_a_node(variable):
    assert load_settings(None, {variable: "/x"}).settings == load_settings(None, {}).settings


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    assert problems(str(tmp_path / "missing.yaml"))[0].endswith("missing.yaml: No such file or directory")
    assert "Is a directory" in problems(str(tmp_path))[0]


def test_a_file_that_is_no_text_or_too_large_is_told(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in problems(str(file))[0]
    file.write_bytes(b"#" * (1024 * 1024 + 1))
    assert "not a config file" in problems(str(file))[0]


def test_an_empty_file_says_nothing(write):
    assert load_settings(write("# nothing\n"), {}).settings.node_id == 1


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("off", False), ("True", True)])
def test_yamls_words_for_yes_and_no_are_booleans(write, word, value):
    settings = load_settings(write(f"auto.create.topics.enable: {word}"), {}).settings
    assert settings.config("auto.create.topics.enable") is value


def test_variables_that_kubernetes_sets_are_not_settings():
    environment = {
        "HEADRACE_PORT": "tcp://10.0.0.1:9092",
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_SERVICE_PORT": "9092",
        "HEADRACE_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "HEADRACE_PORT_9092_TCP_ADDR": "10.0.0.1",
        "HEADRACE_BOOTSTRAP": "x:1",
        "OTHER": "1",
    }
    assert load_settings(None, environment).settings.gateway.port == 8080
    assert load_settings(None, {"HEADRACE_PORT": "81"}).settings.gateway.port == 81


def test_names_that_share_an_environment_variable_mean_the_same_key():
    meanings: dict[str, set[str]] = {}
    for name in known_names():
        meanings.setdefault(environment_name(name), set()).add(find_config(name)[0].name)
    assert [keys for keys in meanings.values() if len(keys) > 1] == []


@given(st.dictionaries(st.sampled_from(known_names()), st.text("abc019-:/,@.", max_size=8), max_size=5))
def test_no_flags_do_anything_but_load_or_be_refused(pairs):
    try:
        load_settings(None, {}, [flag(key, value) for key, value in pairs.items()])
    except SettingsError:
        return


MEMBERS = [f"{node}@127.0.0.1:{9091 + node}@127.0.0.1:{19091 + node}" for node in (1, 2, 3)]


@pytest.mark.parametrize(
    ("members", "more", "expected"),
    [
        (3, (), (3, 2)),
        (2, (), (1, 1)),
        (0, (), (1, 1)),
        (3, [("default_replication_factor", "1")], (1, 1)),
        (3, [("default.replication.factor", "2")], (2, 1)),
        (3, [("min.insync.replicas", "1")], (3, 1)),
    ],
)
def test_a_cluster_of_three_members_replicates_by_default(members, more, expected):
    flags = [flag("cluster.initial_members", ",".join(MEMBERS[:members]))] if members else []
    loaded = load_settings(None, {}, [*flags, *(flag(*one) for one in more)])
    settings = loaded.settings
    assert (settings.integer("default.replication.factor"), settings.integer("min.insync.replicas")) == expected


def test_the_ports_of_brokers_are_known():
    flags = [
        flag("cluster.initial_members", ",".join(MEMBERS)),
        flag("node_id", "2"),
        flag("api_addr", "127.0.0.1:9093"),
    ]
    assert load_settings(None, {}, flags).settings.broker_ports == {9092, 9093, 9094, 19092, 19093, 19094}
