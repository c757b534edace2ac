"""What the seed of a life does not leave to chance: who takes part, and, to look for something, what may go wrong."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tests.simulation.cluster_ends import Ends
from tests.simulation.cluster_groups import Groups
from tests.simulation.cluster_moves import Moves
from tests.simulation.cluster_topics import Topics
from tests.simulation.cluster_transactions import Transactions

Role = Transactions | Groups | Moves | Ends | Topics
ROLES: tuple[type[Role], ...] = (Transactions, Groups, Moves)
# Who takes part in a life beside the plain clients, by seed.
CASTS: tuple[tuple[type[Role], ...], ...] = (
    (),
    (Transactions,),
    (Groups,),
    (Moves,),
    (),
    (Transactions, Moves),
    (Groups, Moves),
    ROLES,
)


class Bias(NamedTuple):
    """What is left to chance, and what is not: to look for something in particular."""

    roles: tuple[type[Role], ...] | None = None
    flushes_before_ack: bool | None = None
    min_isr: int | None = None
    faults: tuple[str, ...] = (
        "_crash",
        "_crash",
        "_stop_cleanly",
        "_cut_brokers",
        "_cut_store",
        "_pause",
        "_lossy_network",
        "_heal",
        "_crash_all",
        "_crash_in_a_row",
        "_crash_in_a_row",
        "_isolate",
        "_return_and_crash",
        "_slow_disk",
    )
    settings: Mapping[str, str] = MappingProxyType({})  # of the brokers
    topic_configs: Mapping[str, str] = MappingProxyType({})
    backfill_ms: int = 0  # how old the timestamps of plain records are


# Faults that chance rarely brings together, each beside a few ordinary ones.
STARTS = Bias(
    faults=("failing_start", "failing_start", "_crash", "_crash_in_a_row", "_slow_disk", "_cut_store", "_heal")
)
DISK_ERRORS = Bias(
    faults=("failing_operation", "failing_operation", "failing_append", "failing_start", "_crash", "_heal")
)
FULL_DISKS = Bias(
    roles=(), min_isr=2, faults=("start_on_full_disk",), settings={"leader.imbalance.check.interval.seconds": "2"}
)
NEW_DISKS = Bias(roles=(), min_isr=2, faults=("replace_disk", "replace_disk", "_crash"))
OLDER_DISKS = NEW_DISKS._replace(faults=("restore_older_disk", "_crash"))
DISKS_OF_THIS_RUN = NEW_DISKS._replace(faults=("restore_disk_of_this_run", "_crash"))
FORMER_DISKS = NEW_DISKS._replace(faults=("return_former_disk", "_crash"))
LAST_DISKS = Bias(roles=(), min_isr=1, faults=("replace_last_disk",))
LAST_DIRECTORIES = LAST_DISKS._replace(faults=("lose_last_directories",))
RESTORED = Bias(faults=("restore_metadata",))
RESTORED_OFTEN = RESTORED._replace(min_isr=1, faults=("restore_metadata", "restore_metadata", "_crash"))
RESTORED_LOGS = RESTORED._replace(roles=(), flushes_before_ack=True)
RESTORED_LAGGING = RESTORED_LOGS._replace(faults=("restore_metadata_of_lagging",))
RESTORED_IDS = RESTORED._replace(roles=(Transactions,), flushes_before_ack=True)
CLONES = Bias(roles=(), faults=("clone_node", "clone_node", "_crash"))
POLICIES = Bias(faults=("change_policy", "change_policy", "change_policy", *Bias().faults))
ENDS = Bias(roles=(Ends,), faults=("leave_one", "leave_one", "_crash", "_stop_cleanly", "_crash_all"))
FEW_IN_SYNC = Bias(roles=(Transactions, Groups), min_isr=2, faults=("leave_one", "leave_one", "_pause", "_heal"))
RETURNS = Bias(roles=(), faults=("return_early", "return_early", "_crash"))
TOPICS = Bias(
    roles=(Topics,),
    flushes_before_ack=True,
    faults=("failing_rename", "failing_rename", "_crash", "_crash", "_stop_cleanly", "_crash_in_a_row", "_pause"),
)
DELETIONS = TOPICS._replace(faults=("_isolate", "_return_and_crash", "_crash", "_heal"))
EXPIRY = Bias(
    roles=(),
    faults=("days_pass", "_lossy_network", "_lossy_network", "_crash", "_pause", "_cut_brokers", "_heal"),
    settings={"producer.id.expiration.check.interval.ms": "200", "offsets.retention.check.interval.ms": "500"},
    topic_configs={"retention.ms": "-1"},
    backfill_ms=30 * 24 * 3600 * 1000,
)
EXPIRING_COORDINATORS = EXPIRY._replace(roles=(Transactions, Groups))

FAULTS = {
    "failing starts": STARTS,
    "failing disks": DISK_ERRORS,
    "full disks": FULL_DISKS,
    "replaced disks": NEW_DISKS,
    "replaced last disks": LAST_DISKS,
    "lost last directories": LAST_DIRECTORIES,
    "older disks": OLDER_DISKS,
    "former disks": FORMER_DISKS,
    "disks of this run": DISKS_OF_THIS_RUN,
    "restored metadata": RESTORED,
    "restored metadata, lagging replica": RESTORED_LAGGING,
    "cloned brokers": CLONES,
    "changed policies": POLICIES,
    "lagging watermarks": ENDS,
    "too few in sync": FEW_IN_SYNC,
    "late metadata": RETURNS,
    "topics created again": TOPICS,
    "deleted records": DELETIONS,
    "expiry": EXPIRY,
    "expiry for coordinators": EXPIRING_COORDINATORS,
}
