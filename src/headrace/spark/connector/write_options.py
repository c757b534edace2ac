"""Options of the sink: those of Spark's Kafka connector, and those of exactly-once. Pure; performs no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.client.reader.read_options import STREAM_PATIENCE_S, Options
from headrace.client.sync.client import ClientConfig
from headrace.client.sync.transactions import ProducerIdentity
from headrace.model.errors import InvalidConfig
from headrace.records.compression import Codec
from headrace.spark.connector.exactly_once import PREFIX, query_of

WRITE_OPTIONS = (
    "topic",
    "includeHeaders",
    "deliveryGuarantee",
    "transactionTimeoutMs",
    "txnAppId",
    "txnVersion",
    "producerFence",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    client: ClientConfig
    topic: str | None
    exactly_once: bool
    transaction_timeout_ms: int
    codec: int
    batch_bytes: int
    request_bytes_max: int | None  # None: only the broker's limits apply
    acks: int
    numbered: tuple[str, int] | None  # application and number of a batch job, which prevent a second commit
    fence: ProducerIdentity | None
    checkpoint: str | None = None  # where the query records what each batch reads; None if unknown


# The broker's default limit (transaction.max.timeout.ms). A driver that dies during a commit must be back within it.
TRANSACTION_TIMEOUT_MS = 15 * 60 * 1000
# Below the 1 MiB that brokers accept for one batch (max.message.bytes), with a margin for encoding.
BATCH_BYTES = 900_000
_GUARANTEES = ("at-least-once", "exactly-once")
_ACKS = {"all": -1, "-1": -1, "1": 1}


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = Options(given, WRITE_OPTIONS)
    guarantee = (options.text("deliveryGuarantee", _GUARANTEES[0]) or "").lower().replace("_", "-")
    if guarantee not in _GUARANTEES:
        raise InvalidConfig(f"deliveryGuarantee: {guarantee!r} is neither {' nor '.join(_GUARANTEES)}")
    exactly_once = guarantee == _GUARANTEES[1]
    if exactly_once and options.text("asyncProgressTrackingEnabled", "false") == "true":
        raise InvalidConfig("asyncProgressTrackingEnabled: batches may then come again, so exactly-once cannot be kept")
    acks = options.properties.get("acks", "all")
    if acks not in _ACKS or (exactly_once and _ACKS[acks] != -1):
        raise InvalidConfig(f"kafka.acks: {acks!r}; use all, or 1 where losing rows is acceptable")
    codec_name = options.properties.get("compression.type", "none").upper()
    if codec_name not in Codec.__members__:
        raise InvalidConfig(f"kafka.compression.type: {codec_name.lower()!r} is none of none, gzip, snappy, lz4, zstd")
    request_bytes_max = _bytes(options, "max.request.size")
    batch_bytes = _bytes(options, "batch.size") or BATCH_BYTES
    return WriteOptions(
        client=options.client(STREAM_PATIENCE_S),
        topic=options.text("topic"),
        exactly_once=exactly_once,
        transaction_timeout_ms=options.positive("transactionTimeoutMs") or TRANSACTION_TIMEOUT_MS,
        codec=Codec[codec_name],
        batch_bytes=min(batch_bytes, request_bytes_max or batch_bytes),
        request_bytes_max=request_bytes_max,
        acks=_ACKS[acks],
        numbered=_numbered(options, exactly_once),
        fence=_fence(options),
        checkpoint=options.text("checkpointLocation"),
    )


def _bytes(options: Options, name: str) -> int | None:
    text = options.properties.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidConfig(f"kafka.{name}: {text!r} is not a number of bytes")
    return int(text)


def _numbered(options: Options, exactly_once: bool) -> tuple[str, int] | None:
    """Returns application and number of the batch, in Delta's option names. A foreachBatch sets them so that a repeated
    batch is skipped.
    """
    owner, number = options.text("txnAppId"), options.text("txnVersion")
    if owner is None and number is None:
        return None
    if not owner or number is None or not number.isdecimal():
        raise InvalidConfig("txnAppId and txnVersion: give both, a name and a whole number that grows with each batch")
    if not exactly_once:
        raise InvalidConfig("txnAppId: only exactly-once remembers batches; set deliveryGuarantee=exactly-once")
    if query_of(f"{PREFIX}-{owner}") is not None:
        raise InvalidConfig(f"txnAppId: {owner!r} ends as the transactional ids of tasks do; choose another ending")
    return owner, int(number)


def fence_text(owner: ProducerIdentity) -> str:
    return f"{owner.transactional_id},{owner.producer_id},{owner.epoch}"


def _fence(options: Options) -> ProducerIdentity | None:
    text = options.text("producerFence")
    if text is None:
        return None
    name, _, numbers = text.partition(",")
    producer_id, _, epoch = numbers.partition(",")
    if not name or not producer_id.isdecimal() or not epoch.isdecimal():
        raise InvalidConfig(f"producerFence: {text!r} is not a transactional id, a producer id and an epoch")
    return ProducerIdentity(name, int(producer_id), int(epoch))
