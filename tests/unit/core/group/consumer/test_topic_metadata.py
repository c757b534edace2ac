"""What groups keep of the cluster's topics is bounded, whatever members subscribe to."""

from headrace.core.group.consumer.topic_metadata import RESULTS_MAX, Topics
from headrace.core.image.metadata_image import MetadataImage


def test_distinct_subscriptions_do_not_grow_without_bound() -> None:
    topics = Topics(MetadataImage())
    for number in range(2 * RESULTS_MAX):
        topics.matching(f"topic-{number}-.*")
        topics.hash_of(frozenset({f"topic-{number}"}))
    kept = {name: len(value) for name, value in vars(topics).items() if isinstance(value, dict)}
    assert max(kept.values()) == RESULTS_MAX, kept
