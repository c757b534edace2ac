"""Which partitions of a follower's session are looked at when it fetches."""

from typing import cast
from uuid import UUID

import pytest

from headrace.broker.handlers.data.follower_fetch import ReplicaReads
from headrace.broker.server import Broker
from headrace.core.fetch_session import CachedPartition, FetchSession
from headrace.core.image.model import PartitionRegistration
from headrace.model.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest
from tests.unit.broker.handlers.handler_kit import HandlerKit

FOLLOWER, EPOCH = 2, 44
TWO = PartitionRegistration(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=1)


class Session:
    """A follower that holds one record, has said so, and knows that it is committed."""

    def __init__(self, kit: HandlerKit, topic_id: UUID) -> None:
        self.reads = ReplicaReads(cast(Broker, kit))
        self.partition = kit.partition("t")
        self.partition.follow(TWO._replace(leader_epoch=self.partition.leader_epoch + 1))
        kit.append("t", "x")
        wanted = FetchPartition(
            partition=0,
            current_leader_epoch=self.partition.leader_epoch,
            fetch_offset=1,
            last_fetched_epoch=self.partition.leader_epoch,
            log_start_offset=0,
            bytes_max=1000,
        )
        self.cached = CachedPartition(wanted, high_watermark=1, log_start_offset=0, answered=wanted)
        self.session = FetchSession(1, True, 0, partitions={(topic_id, 0): self.cached})
        self.partition.update_follower_fetch_state(FOLLOWER, EPOCH, 1, wanted.last_fetched_epoch, 0)
        assert self.partition.high_watermark == 1

    def is_idle(self, epoch: int = EPOCH) -> bool:
        request = FetchRequest(FOLLOWER, 500, 1, 1000, False, 1, 1, [], [], "", epoch)
        wanted, idle = self.reads.with_news(self.session, request)
        assert len(wanted) + len(idle) == 1
        self.reads.note_idle(request, idle)
        return bool(idle)


@pytest.fixture
async def session(kit: HandlerKit) -> Session:
    return Session(kit, await kit.create("t"))


async def test_a_partition_of_which_everything_is_known_is_passed_over(session: Session) -> None:
    assert session.is_idle()


async def test_a_new_record_is_looked_at(session: Session, kit: HandlerKit) -> None:
    kit.append("t", "y")
    assert not session.is_idle()


async def test_a_watermark_that_the_follower_does_not_know_is_looked_at(session: Session) -> None:
    session.cached.high_watermark = 0
    assert not session.is_idle()


async def test_what_was_never_answered_well_is_looked_at(session: Session) -> None:
    session.cached.answered = None
    assert not session.is_idle()


async def test_another_term_is_looked_at(session: Session) -> None:
    session.partition.follow(TWO._replace(leader_epoch=session.partition.leader_epoch + 1))
    assert not session.is_idle()


async def test_a_follower_that_is_not_in_sync_is_looked_at(session: Session) -> None:
    epoch = session.partition.leader_epoch
    session.partition.follow(TWO._replace(isr=(1,), leader_epoch=epoch, partition_epoch=2))
    assert not session.is_idle()


async def test_a_follower_that_has_registered_anew_is_looked_at(session: Session) -> None:
    assert not session.is_idle(epoch=EPOCH + 1)


@pytest.mark.parametrize("epoch", [0, 9], ids=["known epoch", "diverging epoch"])
async def test_fetch_below_an_emptied_log_is_out_of_range(session: Session, kit: HandlerKit, epoch: int) -> None:
    """The leader's epochs went with its records. The follower starts over at the leader's log start."""
    kit.append("t", "y")
    session.partition.update_follower_fetch_state(FOLLOWER, EPOCH, 2, session.partition.leader_epoch, 0)
    session.partition.move_log_start(2)
    session.partition.log.epochs.truncate_from_end(2)
    wanted = session.cached.wanted._replace(fetch_offset=1, last_fetched_epoch=epoch)
    row = session.reads.read(session.partition, FOLLOWER, wanted, 1000, is_first=True)
    assert (row.error, row.log_start_offset, row.diverging) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2, None)
