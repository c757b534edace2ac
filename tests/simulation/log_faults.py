"""A simulated log under faults: power losses, process crashes, failing operations, lost and corrupt files."""

import errno
from collections.abc import Callable
from random import Random

from headrace.model.errors import DiskFull, StorageError
from headrace.storage.producer.producer_snapshot_file import SNAPSHOT_SUFFIX
from headrace.testing import PowerLost
from tests.simulation.log_checks import (
    check_last_stable_offset,
    check_producers,
    check_recovered,
    forget_lost_producers,
)
from tests.simulation.log_maintenance import MaintainedLog
from tests.simulation.simulated_log import DIRECTORY, NAME

# Of what recovery can write again. An index of aborted transactions may be corrupt, and is never missing by itself.
REBUILT = (".index", ".timeindex", ".txnindex", ".snapshot")
# Syncs that fail take a partition offline: the storage simulation has them.
FAILING = ("open", "append", "rename", "remove", "truncate", "list")
STARTS_MAX = 20
# How much more or less often than usual something happens in a run: one with many deletions and hardly any sync finds
# what no mean of them finds.
FACTORS = (0.2, 1, 1, 4)


class FaultyLog(MaintainedLog):
    """The whole simulation: `step` after `step`, then `finish`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._actions = [action for action, _ in self._usual_actions()]
        self._weights = [weight * self.random.choice(FACTORS) for _, weight in self._usual_actions()]
        # After a fault that may lose snapshots, producers may be forgotten: half of the runs are strict to the end.
        self._loses_snapshots = self.random.random() < 0.5

    def _usual_actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.produce, 40),
            (self.end_transaction, 12),
            (self.sync, 20),
            (self.read, 6),
            (self.compact, 8 if self.config.compacts else 0),
            (self.apply_retention, 4),
            (self.delete_records, 2),
            (self.expire_producers, 3),
            (self.advance_clocks, 6),
            (self.crash, 2),
            (self.stop_cleanly, 2),
            (self.truncate, 2),
            (self.checkpoint, 5),
            (self.work_off_backlog, 6),
            (self.crash_and_lose_a_file, 1),
            (self.sync_behind_appends, 4),
            (self.fail_an_operation, 3),
            (self.resend_a_batch, 3),
            (self.roll, 1),
        ]

    def step(self) -> None:
        action = self.random.choices(self._actions, self._weights)[0]
        if not self._loses_snapshots and action in (self.crash_and_lose_a_file, self.fail_an_operation):
            action = self.crash
        self.note(action.__name__)
        if self.random.random() < 0.04:
            self.files.lose_power_before(self.random.randrange(1, 40))
        try:
            action()
        except PowerLost:
            self.note("power loss")
            self.files.heal()
            self._restart(power_is_lost=True)
        finally:
            self.files.heal()
        self.check_state()

    def finish(self) -> None:
        """A clean stop, a crash, and one with which the newest snapshots are lost: everything is compared once more."""
        self.stop_cleanly()
        self.crash()
        self.check_state()
        snapshots = [name for name in self.files.list(DIRECTORY) if name.endswith(SNAPSHOT_SUFFIX)]
        for name in snapshots[-self.random.randrange(1, 4) :]:
            self.model.snapshots_may_be_lost = True
            self.files.remove(f"{DIRECTORY}/{name}")
            self.note(f"lose {name}")
        self.crash()
        self.check_state()

    def check_state(self) -> None:
        check_producers(self.log, self.model)
        check_last_stable_offset(self.log, self.model)

    # ── faults ──

    def fail_an_operation(self) -> None:
        """Any but a sync: a full disk rejects the request, another error takes the partition offline."""
        self.model.snapshots_may_be_lost = True  # a snapshot that cannot be written is left out
        error = errno.ENOSPC, errno.EIO
        self.files.fail(self.random.choice(FAILING), nth=self.random.randrange(1, 6), error=self.random.choice(error))
        work = [self.produce, self.end_transaction, self.checkpoint, self.work_off_backlog]
        work.append(self.compact if self.config.compacts else self.produce)
        try:
            for _ in range(4):
                self.random.choice(work)()
        except DiskFull:
            assert self.log.log_end_offset == self.model.end_offset, "rejected, and written all the same"
        except StorageError as failure:
            self.files.heal()
            self.note(f"offline: {failure}")
            self._restart(power_is_lost=False)

    def crash(self) -> None:
        self._restart(power_is_lost=self.random.random() < 0.5)

    def crash_and_lose_a_file(self) -> None:
        self._restart(power_is_lost=self.random.random() < 0.5, loses_a_file=True)

    def _lose_a_file(self) -> None:
        """One that recovery writes again, or a bit of it."""
        names = [name for name in self.files.list(DIRECTORY) if name.endswith(REBUILT)]
        if not names:
            return
        self.model.snapshots_may_be_lost = True
        name = self.random.choice(names)
        path = f"{DIRECTORY}/{name}"
        size = len(self.files.read(path))
        if self.random.random() >= 0.3 and size:
            self.note(f"flip a bit of {name}")
            self.files.flip_bit(path, byte=self.random.randrange(size), bit=self.random.randrange(8))
        elif not name.endswith(".txnindex"):
            self.note(f"lose {name}")
            self.files.remove(path)
            self.files.sync_dir(DIRECTORY)

    # ── stops and starts ──

    def stop_cleanly(self) -> None:
        self.log.close()
        self.model.high_watermark = max(self.model.high_watermark, self.log.log_end_offset)
        self.log_dir.note(NAME, self.log)
        self.log_dir.write_high_watermarks()
        self.log_dir.mark_clean()
        self._start()

    def _restart(self, *, power_is_lost: bool, loses_a_file: bool = False) -> None:
        """A start may lose its power, too."""
        for _ in range(STARTS_MAX):
            if power_is_lost:
                self.note_missing_snapshot()
                if self.config.compacts:
                    # Compaction changes indexes, and says so in the newest snapshot without a sync of its name. If that
                    # is lost, recovery reads the batches that are left.
                    self.model.may_be_behind |= self.model.without_records(self.log.log_start_offset)
                is_torn = self.random.random() < 0.6
                self.files.lose_power(torn=Random(self.random.random()) if is_torn else None)
            if loses_a_file:
                self._lose_a_file()
                loses_a_file = False
            if self.random.random() < 0.2:
                self.files.lose_power_before(self.random.randrange(1, 60))
            try:
                self._start()
            except PowerLost:
                self.note("power loss during the start")
                self.files.heal()
                power_is_lost = True
            else:
                return
        raise AssertionError("the log does not open any more")

    def _start(self) -> None:
        self._open_again()
        log, model = self.log, self.model
        check_recovered(log, model)
        model.start = model.start_asked = log.log_start_offset
        model.truncate(log.log_end_offset, log.log_start_offset)
        self.acknowledge(log.log_end_offset)  # consumers see it now
        forget_lost_producers(log, model)
        self.read()

    def _open_again(self) -> None:
        self.backlog = []
        self.log_dir = self._open_directory()
        if not self.log_dir.was_clean:
            self.leader_epoch += 1
        self.log = self.log_dir.open(NAME, self.config, now_ms=self.wall_ms)
        self.log_dir.opened_to(NAME, self.log.log_end_offset)
        self.log_dir.end_recovery()
        self.files.heal()
        self.note(f"started with {self.log.log_start_offset} to {self.log.log_end_offset}")
