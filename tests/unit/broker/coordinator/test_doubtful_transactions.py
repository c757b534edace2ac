"""Transactions whose end marker may be corrupt, as operators see them."""

from headrace.broker.reporting.broker_report import LogTotals
from headrace.broker.reporting.health_checks import checks_of
from headrace.storage.producer.producer_snapshot_file import remove_snapshots
from headrace.telemetry.broker_metrics import LOST_MARKER
from headrace.telemetry.health import Status
from headrace.testing import SimFiles
from tests.unit.broker.start_kit import Machine
from tests.unit.storage.test_log_transactions import COMMIT, end, write

SEGMENT = "/data/t-0/00000000000000000000.log"


async def test_transaction_without_a_readable_marker_is_reported_with_the_remedy() -> None:
    with SimFiles() as files:
        machine = Machine(files)
        broker = await machine.created()
        log = broker.partitions.get("t", 0).log
        write(log, 7, "committed")
        position = log.active.size
        end(log, 7, COMMIT)
        write(log, 8, "in progress")
        assert checks_of(broker)["transactions"].status is Status.OK
        await broker.stop()

        # Nothing that a later start could use instead is left.
        files.remove("/data/.kafka_cleanshutdown")
        remove_snapshots(files, "/data/t-0", after=-1)
        for byte in range(position + 17, position + 70, 10):
            files.flip_bit(SEGMENT, byte=byte)
        broker = await machine.started()
        check = checks_of(broker)["transactions"]
        assert check.status is Status.DEGRADED
        assert "1 partitions" in check.detail
        assert "headrace transactions abort --topic t --partition 0 --start 0" in check.detail
        totals = LogTotals(1, unopened=0)
        list(totals.look_at(broker.partitions.all()))
        rows = [family.samples for family in totals.families() if family.metric is LOST_MARKER]
        assert rows == [[(("t", "0"), 0)]]

        end(broker.partitions.get("t", 0).log, 7, COMMIT)
        assert checks_of(broker)["transactions"].status is Status.OK
        await broker.stop()
        await machine.store.close()
