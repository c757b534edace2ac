import pytest

from headrace.app.etcd.bootstrap import Answer, MemberInfo, found, found_with, going_first, joining
from headrace.config.settings import ClusterSettings, Member, Settings
from headrace.model.errors import InvalidConfig

URLS = [f"http://h{number}:2" for number in (1, 2, 3)]


def node(node_id: int) -> Settings:
    members = tuple(Member(node_id=one, api_addr=f"h{one}:1", rpc_addr=f"h{one}:2") for one in (1, 2, 3))
    cluster = ClusterSettings(rpc_addr=f"h{node_id}:2", initial_members=members, bootstrap=node_id == 1)
    return Settings(node_id=node_id, cluster=cluster)


def known(mark: str = "abc", started: tuple[int, ...] = ()) -> list[MemberInfo]:
    """As a member lists three founders; those that were started have client addresses."""
    return [
        MemberInfo(f"node-{one}-{mark}", (URLS[one - 1],), (f"http://h{one}:3",) if one in started else ())
        for one in (1, 2, 3)
    ]


def test_the_founder_and_those_who_found_with_it_say_the_same() -> None:
    founder = found(node(1), None, "abc")
    assert (founder.name, founder.state, founder.token) == ("node-1-abc", "new", "abc")
    for node_id in (2, 3):
        with_it = found_with(node(node_id), known(), URLS[node_id - 1])
        assert with_it.name == f"node-{node_id}-abc"
        assert (with_it.state, with_it.everybody, with_it.token) == (founder.state, founder.everybody, founder.token)


def test_no_second_cluster_is_founded_beside_a_running_one() -> None:
    with pytest.raises(InvalidConfig, match="h2:2 has a cluster already"):
        found(node(1), Answer("h2:2", known()), "xyz")


def test_a_member_that_was_started_before_does_not_come_back_without_its_data() -> None:
    with pytest.raises(InvalidConfig, match="its data are lost"):
        found_with(node(2), known(started=(1, 2)), URLS[1])


def test_a_founder_that_comes_after_a_change_of_members_is_refused() -> None:
    changed = [*known(started=(1, 2)), MemberInfo("node-4", ("http://h4:2",), ("http://h4:3",))]
    with pytest.raises(InvalidConfig, match="members have changed"):
        found_with(node(3), changed, URLS[2])


def test_who_was_added_joins_with_the_addresses_that_etcd_knows() -> None:
    added = [*known(started=(1, 2, 3)), MemberInfo("", ("http://h4:2",), ())]
    begin = joining(node(4), added, "http://h4:2")
    assert begin.state == "existing"
    assert [url for _, url in begin.everybody] == [*URLS, "http://h4:2"]
    assert begin.everybody[-1][0] == begin.name
    assert len({name for name, _ in begin.everybody}) == 4
    assert found_with(node(4), added, "http://h4:2") == begin, "also when it died before it could begin"


def test_members_begin_one_after_the_other() -> None:
    assert [going_first(url, known(started=(1,))) for url in URLS] == [[], [], [URLS[1]]]
