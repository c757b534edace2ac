"""What a broker that others have replaced tells clients who ask it directly, over a connection that they had before."""

from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.records.record import decode_records
from tests.integration.raw import RawConnection

# Must be acknowledged by nobody who was replaced, and must be in no log afterwards.
UNFENCED = build_batch([NewRecord(0, None, b"unfenced")])


def acknowledges(connection: RawConnection, topic: str) -> bool:
    """Whether the Produce that was sent is answered with yes: no answer is none."""
    try:
        code, _ = connection.receive_produced(topic)
    except (ConnectionError, TimeoutError):
        return False
    return code == 0


def read_by(connection: RawConnection, topic: str, answers: int) -> dict[int, str]:
    """What the answers to the Fetches that were sent hold, by offset. One that hangs up has shown nothing more."""
    found: dict[int, str] = {}
    try:
        for _ in range(answers):
            code, data = connection.receive_fetched(topic)
            if code == 0:
                found |= _values(data)
    except (ConnectionError, TimeoutError):
        pass
    return found


def _values(data: bytes) -> dict[int, str]:
    return {
        record.offset: (record.value or b"").decode()
        for position, header in walk(data)
        for record in decode_records(data[position : position + header.total_bytes], header)
    }
