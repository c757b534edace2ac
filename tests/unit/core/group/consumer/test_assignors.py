from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.group.consumer.assignment import pairs
from headrace.core.group.consumer.assignors import Candidate, assign_ranges, assign_uniformly
from headrace.core.group.consumer.model import Partitions
from headrace.core.group.consumer.topic_metadata import TopicView

TOPICS = [UUID(int=number) for number in range(1, 4)]


def view(topic_id: UUID, partitions: int, *racks: str) -> TopicView:
    return TopicView(topic_id, partitions, tuple(frozenset({rack}) for rack in racks))


def sizes(shares: dict[str, Partitions]) -> list[int]:
    return sorted(len(list(pairs(share))) for share in shares.values())


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Candidate], dict[UUID, TopicView]]:
    topics = {topic: view(topic, draw(st.integers(1, 7))) for topic in TOPICS}
    members = {
        f"m{number}": Candidate(
            draw(st.frozensets(st.sampled_from(TOPICS), min_size=1)),
            had={
                topic: draw(st.frozensets(st.integers(0, 9), min_size=1))
                for topic in draw(st.sets(st.sampled_from(TOPICS)))
            },
        )
        for number in range(draw(st.integers(1, 6)))
    }
    return members, topics


@given(groups())
def test_every_partition_that_somebody_reads_has_exactly_one_owner_who_reads_it(
    group: tuple[dict[str, Candidate], dict[UUID, TopicView]],
) -> None:
    members, topics = group
    for assign in (assign_uniformly, assign_ranges):
        shares = assign(members, topics)
        given_out = [partition for share in shares.values() for partition in pairs(share)]
        read = {topic for member in members.values() for topic in member.topics}
        assert sorted(given_out) == [(one, at) for one in TOPICS if one in read for at in range(topics[one].partitions)]
        for member_id, share in shares.items():
            assert set(share) <= members[member_id].topics


@given(groups())
def test_uniform_leaves_nobody_with_two_more_than_another_who_could_take_one(
    group: tuple[dict[str, Candidate], dict[UUID, TopicView]],
) -> None:
    members, topics = group
    shares = assign_uniformly(members, topics)
    load = {member_id: len(list(pairs(share))) for member_id, share in shares.items()}
    for owner, share in shares.items():
        for topic in share:
            for other, member in members.items():
                assert topic not in member.topics or load[owner] <= load[other] + 1


@given(st.integers(1, 40), st.integers(1, 8))
def test_uniform_moves_nothing_when_nothing_has_changed(partitions: int, count: int) -> None:
    topics = {TOPICS[0]: view(TOPICS[0], partitions)}
    members = {f"m{number}": Candidate(frozenset(TOPICS[:1])) for number in range(count)}
    first = assign_uniformly(members, topics)
    again = {member_id: one._replace(had=first[member_id]) for member_id, one in members.items()}
    assert assign_uniformly(again, topics) == first


@given(st.integers(1, 40), st.integers(1, 8))
def test_uniform_takes_from_the_others_only_what_a_newcomer_needs(partitions: int, count: int) -> None:
    topics = {TOPICS[0]: view(TOPICS[0], partitions)}
    members = {f"m{number}": Candidate(frozenset(TOPICS[:1])) for number in range(count)}
    first = assign_uniformly(members, topics)
    more = {member_id: one._replace(had=first[member_id]) for member_id, one in members.items()}
    second = assign_uniformly({**more, "new": Candidate(frozenset(TOPICS[:1]))}, topics)
    for member_id, share in first.items():
        assert set(pairs(second[member_id])) <= set(pairs(share)), "nobody but the newcomer gets anything new"
    assert sizes(second)[-1] - sizes(second)[0] <= 1


def test_uniform_prefers_partitions_in_the_members_rack() -> None:
    topics = {TOPICS[0]: view(TOPICS[0], 4, "east", "west", "east", "west")}
    members = {
        "a": Candidate(frozenset(TOPICS[:1]), rack="west"),
        "b": Candidate(frozenset(TOPICS[:1]), rack="east"),
    }
    shares = assign_uniformly(members, topics)
    assert shares == {"a": {TOPICS[0]: frozenset({1, 3})}, "b": {TOPICS[0]: frozenset({0, 2})}}


def test_range_cuts_topics_of_the_same_size_at_the_same_places() -> None:
    topics = {topic: view(topic, 5) for topic in TOPICS[:2]}
    shares = assign_ranges({name: Candidate(frozenset(TOPICS[:2])) for name in "ab"}, topics)
    assert shares["a"] == {topic: frozenset({0, 1, 2}) for topic in TOPICS[:2]}
    assert shares["b"] == {topic: frozenset({3, 4}) for topic in TOPICS[:2]}


def test_range_keeps_the_place_of_a_static_member_whose_process_is_new() -> None:
    topics = {TOPICS[0]: view(TOPICS[0], 2)}
    before = {
        "x": Candidate(frozenset(TOPICS[:1]), instance_id="1"),
        "a": Candidate(frozenset(TOPICS[:1]), instance_id="2"),
    }
    after = {"y": before["x"], "a": before["a"]}
    assert assign_ranges(before, topics)["x"] == assign_ranges(after, topics)["y"]
