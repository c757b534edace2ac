"""A pending update of a consumer group: its records are applied to a copy, so that each step sees the previous ones.

The group itself is unchanged until the coordinator runtime applies the same records.
"""

from headrace.core.coordinator import Timer
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.model import (
    GroupEpoch,
    HoldingOf,
    MemberSubscribed,
    ModernFact,
    Rebalance,
    RegexResolved,
    TargetOf,
    rebalance_timer,
    session_timer,
)
from headrace.core.group.consumer.topic_metadata import Topics


class ConsumerGroupUpdate:
    def __init__(self, group: ConsumerGroup) -> None:
        self.before = group
        self.group = group
        self.facts: list[ModernFact] = []
        self.timers: list[Timer] = []

    def add(self, fact: ModernFact) -> None:
        if not self.facts:
            self.group = self.before.copy()
        self.group.apply(fact)
        self.facts.append(fact)

    def remove_member(self, member_id: str) -> None:
        group_id = self.group.group_id
        subscription = self.group.subscriptions[member_id]
        self.add(HoldingOf(group_id, member_id, None))
        self.add(TargetOf(group_id, member_id, None))
        self.add(MemberSubscribed(group_id, member_id, None))
        self.timers += [
            Timer(session_timer(group_id, member_id), None),
            Timer(rebalance_timer(group_id, member_id), None),
        ]
        self.forget_regex(subscription.regex)

    def forget_regex(self, regex: str | None) -> None:
        if regex and regex in self.group.regexes and not self.group.uses_regex(regex):
            self.add(RegexResolved(self.group.group_id, regex, None))

    def raise_epoch(self, topics: Topics, cause: str) -> None:
        group = self.group
        epoch = group.epoch + 1
        self.add(GroupEpoch(group.group_id, epoch, topics.hash_of(group.subscribed_topics())))
        before, after = (tuple(sorted(one.subscriptions)) for one in (self.before, self.group))
        self.add(Rebalance(group.group_id, epoch, cause, before, after))
