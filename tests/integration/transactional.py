"""What a transactional producer says, request by request, to whichever broker."""

from typing import Any, NamedTuple

from headrace.client.sync.transport import Connection
from tests.patience import awaited
from tests.torture.transaction_v2 import TRY_AGAIN, error_codes, message_type
from tests.unit.broker.handlers.handler_kit import build

PATIENCE_S = 60.0


class Owner(NamedTuple):
    """Who writes: what InitProducerId and EndTxn give."""

    producer_id: int = -1
    producer_epoch: int = -1


class Message(NamedTuple):
    request: Any
    response_type: type[Any]


def message(name: str, **fields: Any) -> Message:
    return Message(build(message_type(name, "request"), fields), message_type(name, "response"))


def ask(port: int, asked: Message) -> Any:
    """The answer, as soon as it is another one than "not now"."""

    def answer() -> Any:
        with Connection("127.0.0.1", port, PATIENCE_S) as connection:
            return connection.call(*asked)

    return awaited(answer, lambda one: not TRY_AGAIN & set(error_codes(one)), "an answer", PATIENCE_S)


def owner_in(answer: Any) -> Owner:
    assert error_codes(answer) == []
    return Owner(answer.producer_id, answer.producer_epoch)


def is_complete(port: int, transactional_id: str) -> bool:
    """Whether the transaction's outcome is known wherever it wrote, as its coordinator says."""
    asked = message("describe_transactions.v0", transactional_ids=(transactional_id,))
    with Connection("127.0.0.1", port, PATIENCE_S) as connection:
        (described,) = connection.call(*asked).transaction_states
    return described.transaction_state in ("CompleteCommit", "CompleteAbort")
