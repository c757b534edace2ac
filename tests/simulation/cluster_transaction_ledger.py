"""What the producers of transactions know of them, and what may be seen of each."""

from dataclasses import dataclass, field
from enum import Enum

from tests.simulation.cluster_promises import TransactionTorn


class Outcome(Enum):
    ABORTED = "aborted"  # also while nobody has asked for a commit
    COMMITTED = "committed"
    UNKNOWN = "perhaps committed"  # a commit was asked for, and not answered


@dataclass
class Transaction:
    """What its producer knows of it."""

    number: int
    values: list[str] = field(default_factory=list)
    group: str | None = None  # whose offset it commits, if it does
    outcome: Outcome = Outcome.ABORTED

    def __str__(self) -> str:
        return f"transaction {self.number} ({self.outcome.value}, {self.values})"


class TransactionLedger:
    """Every transaction that was begun, and what may be seen of it."""

    def __init__(self) -> None:
        self._all: list[Transaction] = []
        self._of: dict[str, Transaction] = {}

    def begin(self) -> Transaction:
        self._all.append(Transaction(len(self._all)))
        return self._all[-1]

    def writes(self, transaction: Transaction, values: list[str]) -> None:
        transaction.values += values
        self._of.update(dict.fromkeys(values, transaction))

    def commits_offset(self, transaction: Transaction, group: str) -> int:
        """The offset to commit with it: the number of the transaction, so that it tells whose it is."""
        transaction.group = group
        return transaction.number

    def seen(self, value: str) -> None:
        transaction = self._of.get(value)
        if transaction is not None and transaction.outcome is Outcome.ABORTED:
            raise TransactionTorn(f"{value!r} of {transaction} is seen by a reader with read_committed")

    def is_of_transaction(self, value: str) -> bool:
        return value in self._of

    def offsets(self, visible: set[str]) -> dict[str, int]:
        """By group, the offset of the last transaction that is seen."""
        took_effect = [one for one in self._all if any(value in visible for value in one.values)]
        groups = dict.fromkeys((one.group for one in self._all if one.group is not None), -1)
        return groups | {one.group: one.number for one in took_effect if one.group is not None}

    def check(self, visible: set[str]) -> None:
        for one in self._all:
            seen = [value for value in one.values if value in visible]
            some, whole = bool(seen), len(seen) == len(one.values)
            if (
                (one.outcome is Outcome.ABORTED and some)
                or (one.outcome is Outcome.COMMITTED and not whole)
                or (some and not whole)
            ):
                raise TransactionTorn(f"of {one}, {seen} is seen in the end")
