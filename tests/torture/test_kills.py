"""`kill -9` of the broker under load, again and again: no promise is broken, to whatever kind of client."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker
from tests.torture.clients import IMPATIENT
from tests.torture.plan import SECONDS_MAX, Dice, kills
from tests.torture.stage import (
    GROUP_SETTINGS,
    PLACES,
    Stage,
    acknowledged,
    committed,
    create_topic,
    running,
    wait_for,
)

# A kill comes after this many acknowledgements at most; sometimes after none, while the broker still recovers.
ACKS_BETWEEN_KILLS_MAX = 400
TRANSACTIONS_BETWEEN_KILLS_MAX = 8
SECONDS_IN_ALL_MAX = 3600  # under torture
SETTINGS = {"log.segment.bytes": str(1024 * 1024), **GROUP_SETTINGS}  # the smallest there is, so that logs roll
# One batch of 20 records with keys of 2,000 bytes fills more than half of it: a log rolls every few batches.
SMALL_SEGMENT_BYTES = 64 * 1024
# More records than two segments hold, over all partitions: what the plan needs so that every log rolls.
ACKS_THAT_ROLL = 3 * 2 * SMALL_SEGMENT_BYTES // 2000 + 1


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_IN_ALL_MAX)
def test_kills_under_load_lose_double_and_reorder_nothing_that_was_acknowledged(dice: Dice) -> None:
    number = kills(50, times=10)
    with LocalBroker(memory=False, settings=SETTINGS) as broker:
        create_topic(broker.bootstrap, internal_segment_bytes=str(SMALL_SEGMENT_BYTES))
        stage = Stage(broker.bootstrap, dice)
        loops = stage.senders_and_a_reader()
        with running(loops):
            for _ in range(number):
                wait_for("producers", loops, acknowledged, dice.randrange(ACKS_BETWEEN_KILLS_MAX))
                broker.kill()
                broker.start()
            wait_for("producers", loops, acknowledged, ACKS_THAT_ROLL)
        stage.judge(loops, f"{number} kills")
        assert len(list(Path(broker.data_dir, str(PLACES[0])).glob("*.log"))) > 1, "the log rolled on the way"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_IN_ALL_MAX)
def test_kills_break_no_promise_to_transactions_and_groups(dice: Dice) -> None:
    number = kills(10, times=2)
    with LocalBroker(memory=False, settings=SETTINGS) as broker:
        create_topic(broker.bootstrap)
        stage = Stage(broker.bootstrap, dice)
        loops = [*stage.senders_and_a_reader()[1:], *stage.coordinated()]
        with running(loops):
            for _ in range(number):
                wait_for("producers", loops, acknowledged, dice.randrange(ACKS_BETWEEN_KILLS_MAX))
                wait_for("transactions", loops, committed, dice.randrange(TRANSACTIONS_BETWEEN_KILLS_MAX))
                broker.kill()
                broker.start()
        stage.judge(loops, f"{number} kills")


def test_a_topic_that_was_acknowledged_is_there_after_a_kill_and_a_deleted_one_is_not() -> None:
    with LocalBroker(memory=False) as broker:
        for _ in range(kills(5)):
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, **IMPATIENT})
            kept, dropped = f"kept-{uuid4().hex[:8]}", f"dropped-{uuid4().hex[:8]}"
            wanted = [NewTopic(kept, 2, 1, config={"retention.ms": "1000"}), NewTopic(dropped, 2, 1)]
            for creation in admin.create_topics(wanted).values():
                creation.result(SECONDS_MAX)
            admin.delete_topics([dropped])[dropped].result(SECONDS_MAX)
            broker.kill()
            broker.start()
            topics = admin.list_topics(timeout=SECONDS_MAX).topics
            assert kept in topics
            assert len(topics[kept].partitions) == 2
            assert dropped not in topics
