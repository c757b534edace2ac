"""OpenAPI schemas of requests and responses. Adds schemas that only hand-written parts of the document reference. Data
only.
"""

from typing import Annotated, Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from headrace.api.rest.messages import OFFSET_MAX, PARTITION_MAX, TIMESTAMP_MAX

# The client library's limit; more than any cluster has brokers.
REPLICATION_FACTOR_MAX = 10_000

PARTITIONS_MAX = 100_000  # of one topic; more than a cluster serves, so a larger number is a typing error
Offset = Annotated[int, Field(ge=0, le=OFFSET_MAX, strict=True)]
PartitionNumber = Annotated[int, Field(ge=0, le=PARTITION_MAX, strict=True)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
ConfigText = Annotated[str, Field(max_length=32_767)]
Configs = Annotated[dict[str, ConfigText | int | float | bool | None], Field(max_length=200)]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProblemDocument(BaseModel):
    """Error response (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:headrace:unknown-topic-or-partition"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no topic my-topic"])
    instance: str = Field(examples=["/topics/my-topic"])
    retriable: bool = Field(description="Whether the same request may succeed a little later.")
    kafka_code: int | None = Field(None, examples=[3])
    kafka_error: str | None = Field(None, examples=["UNKNOWN_TOPIC_OR_PARTITION"])


class NewTopic(_In):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "my-topic", "partitions": 4}]},
    )

    name: Name
    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX, strict=True)] | None = Field(
        None, description="Default: the broker's num.partitions."
    )
    replication_factor: Annotated[int, Field(ge=1, le=REPLICATION_FACTOR_MAX, strict=True)] | None = Field(
        None, description="Default: the broker's. More than there are brokers becomes as many as there are."
    )
    configs: Configs = Field(default_factory=dict, description="Topic configs by Kafka's names.")
    strict: bool = Field(False, description="Reject a replication factor that exceeds the number of brokers.")


class TopicRow(BaseModel):
    name: str
    partitions: int
    replication_factor: int
    internal: bool


class TopicList(BaseModel):
    topics: list[TopicRow]
    next: str | None


class CreatedTopic(TopicRow):
    requested_replication_factor: int | None = None
    warning: str | None = None


class PartitionRow(BaseModel):
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    start_offset: int | None
    end_offset: int | None


class TopicView(TopicRow):
    id: str | None
    partition_list: list[PartitionRow]


class DeletedTopic(BaseModel):
    deleted: str


class ConfigRow(BaseModel):
    name: str
    value: str | None
    source: str
    read_only: bool
    type: str
    doc: str


class ConfigList(BaseModel):
    configs: list[ConfigRow]


class ConfigChanges(_In):
    """Keys to set; null resets a key to its default."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"configs": {"retention.ms": "86400000"}}]}
    )

    configs: Annotated[dict[str, ConfigText | int | float | bool | None], Field(min_length=1, max_length=200)]
    validate_only: bool = False


class MorePartitions(_In):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"partitions": 8}]})

    partitions: Annotated[
        int, Field(ge=1, le=PARTITIONS_MAX, strict=True, description="How many there shall be in all.")
    ]


class RecordsBefore(_In):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"partitions": [{"partition": 0, "before_offset": 1}]}]}
    )

    class Row(_In):
        partition: PartitionNumber
        before_offset: Offset | None = Field(None, description="Null: everything there is.")

    partitions: Annotated[list[Row], Field(min_length=1, max_length=10_000)]


class StartOffsets(BaseModel):
    class Row(BaseModel):
        partition: int
        start_offset: int

    partitions: list[Row]


class HeaderIn(_In):
    name: str
    value: Any = None
    value_base64: str | None = None


class MessageIn(_In):
    """A string is its text, null is null, any other value is its JSON text."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"key": "user-1", "value": "Hello World", "partition": 0}]},
    )

    key: Any = None
    key_base64: str | None = Field(None, description="The key as bytes, instead of `key`.")
    value: Any = None
    value_base64: str | None = Field(None, description="The value as bytes, instead of `value`.")
    partition: PartitionNumber | None = Field(None, description="Default: by the key as Java does it, or any.")
    headers: dict[str, Any] | list[HeaderIn] | None = None
    timestamp: Annotated[int, Field(ge=1, le=TIMESTAMP_MAX)] | None = Field(None, description="Default: now.")


class MessagesIn(_In):
    messages: Annotated[list[MessageIn], Field(min_length=1, max_length=10_000)]


class Placed(BaseModel):
    topic: str
    partition: int
    offset: int | None = Field(description="Null with acks=none: the broker sends no offset.")
    timestamp: int | None


class PlacedMany(BaseModel):
    class Row(BaseModel):
        partition: int | None = None
        offset: int | None = None
        timestamp: int | None = None
        error: str | None = None
        kafka_code: int | None = None
        kafka_error: str | None = None
        retriable: bool | None = None

    topic: str
    messages: list[Row]
    failed: int


class Uploaded(BaseModel):
    topic: str
    written: int


class MessageOut(BaseModel):
    offset: int
    timestamp: int
    key: Any = None
    key_base64: str | None = None
    value: Any = None
    value_base64: str | None = None
    headers: list[HeaderIn] | None = None


class Messages(BaseModel):
    topic: str
    partition: int
    messages: list[MessageOut]
    next_offset: int = Field(description="Continue here.")
    high_watermark: int
    start_offset: int


class PartitionOffsets(BaseModel):
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    stable_offset: int = Field(description="Where readers of committed data stop for the moment.")


class Health(BaseModel):
    status: Literal["ok", "degraded", "down"]


class HealthCheck(BaseModel):
    status: Literal["ok", "degraded", "down"]
    detail: str


class DetailedHealth(Health):
    checks: dict[str, HealthCheck]


_NAMED_BY_HAND = (ProblemDocument, MessageIn, MessagesIn)


def complete_openapi(app: FastAPI) -> None:
    """Adds the schemas that are referenced only by hand-written parts of the document."""
    made_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = made_by_fastapi()
        _, definitions = models_json_schema(
            [(model, "validation") for model in _NAMED_BY_HAND], ref_template="#/components/schemas/{model}"
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in definitions["$defs"].items():
            schemas.setdefault(name, schema)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
