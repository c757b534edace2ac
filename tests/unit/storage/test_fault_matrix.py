"""Every file operation of every path that writes, removes or opens a partition's files fails once, in every way.

Each scenario runs once without a fault, to count its operations. Then it runs again for each operation and each fault.

What the partition must look like afterwards:

ENOSPC      An append raises DiskFull, the partition stays online, and its log is what the appends before have returned.
            A retry of the append succeeds at the same offset. Background work is repeated or left for the next start.
            A sync, or an undo, that finds no space takes the partition offline.
EIO, EINTR  StorageError. An append or a sync that meets it takes the partition offline: nothing more is acknowledged
            before a restart. (Python repeats system calls that a signal interrupts; see
            unit/storage/io/test_file_system.py.)
ENOENT      As EIO: a file that should be there is missing. A removal of a file that is gone counts as done.
short write As EIO: half of an append is behind the end of the file and could not be removed.

In every case, after a process crash, a power loss (with nothing of what was not synced, or with all of it except the
bytes of some files), or a clean stop followed by a power loss, the log that is opened again

- has every acknowledged record, and nothing but a prefix of what the appends returned, without a gap;
- shows a read_committed consumer what the definition of a transaction says;
- recognizes the retry of a producer's last batch;
- has indexes that lead to every batch;
- takes appends, and keeps all of the above over another clean stop and power loss.

No operation raises anything but StorageError.
"""

import pytest

from headrace.testing.simulation.files import OPERATIONS
from tests.unit.storage.matrix_kit import (
    End,
    Fault,
    MatrixFiles,
    Offline,
    Operation,
    World,
    can_meet,
    killed,
    power_lost,
    power_lost_all_but,
    stopped,
)
from tests.unit.storage.matrix_scenarios import FIRST, SCENARIOS, Scenario

# Operations that change nothing on disk: a power loss after one that failed is a power loss between two others.
LOOKUPS = {"exists", "list", "read"}
# How the process ends after which faults. EINTR and EIO are the same error to storage, and ENOENT differs only where a
# missing file is expected; so not each of them is followed by each end.
FAULTS_BEFORE: dict[End, tuple[Fault, ...]] = {
    killed: tuple(Fault),
    power_lost: (Fault.ENOSPC, Fault.EIO, Fault.SHORT_WRITE),
    power_lost_all_but(".txnindex"): (Fault.ENOSPC,),
    power_lost_all_but(".log"): (Fault.ENOSPC,),
    stopped: (Fault.ENOSPC, Fault.EIO),
}


def run(scenario: Scenario, files: MatrixFiles, number: int = -1, fault: Fault = Fault.EIO) -> tuple[World, int]:
    """Returns the world and how many operations were done before the steps."""
    world = World(files, scenario.config, leader=scenario.leader)
    scenario.before(world)
    first = len(files.done)
    if number >= 0:
        files.fail_at(first + number, fault)
    try:
        scenario.steps(world)
        world.check()
    except Offline:
        pass
    return world, first


def check_next_lives(world: World) -> None:
    """What is there after a restart stays there; the log takes more, and keeps it."""
    world.leader = 1
    world.start(epoch=10)
    world.adopt()
    key = "key 0" if world.config.compacts else None
    world.produce(1, key=key)
    world.produce(FIRST, transactional=True, key=key)
    world.end(FIRST, commit=False)
    world.log.roll(0)
    world.produce(1, key=key)
    world.sync()
    world.check()
    world.close()
    world.files.lose_power()
    world.start(epoch=11)
    world.adopt()


@pytest.mark.parametrize("end", FAULTS_BEFORE, ids=lambda end: end.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_any_operation_fails_once(scenario: Scenario, end: End) -> None:
    with MatrixFiles() as files:
        world, first = run(scenario, files)
        operations = files.done[first:]
        end(world)
        check_next_lives(world)
    assert operations
    for number, operation in enumerate(operations):
        for fault in FAULTS_BEFORE[end]:
            if can_meet(operation, fault) and (operation.name not in LOOKUPS or end is killed):
                check_one(scenario, end, number, operation, fault)


def check_one(scenario: Scenario, end: End, number: int, operation: Operation, fault: Fault) -> None:
    with MatrixFiles() as files:
        try:
            world, _ = run(scenario, files, number, fault)
            assert files.failed == operation, "each run does the same"
            if end is stopped and not world.is_online:
                return  # as power_lost
            end(world)
            check_next_lives(world)
        except BaseException as error:
            error.add_note(f"{scenario.name}: {fault} at operation {number}: {operation}; then {end.__name__}")
            raise


def test_scenarios_cover_every_kind_of_operation() -> None:
    kinds: set[str] = set()
    for scenario in SCENARIOS:
        with MatrixFiles() as files:
            _, first = run(scenario, files)
            kinds |= {operation.name for operation in files.done[first:]}
    assert kinds == OPERATIONS | {"exists"}
