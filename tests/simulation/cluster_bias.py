"""What the seed of a life does not leave to chance: who takes part, and, to look for something, what may go wrong."""

from typing import NamedTuple

from tests.simulation.cluster_groups import Groups
from tests.simulation.cluster_moves import Moves
from tests.simulation.cluster_transactions import Transactions

Role = Transactions | Groups | Moves
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
    waits_for_disk: bool | None = None
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
