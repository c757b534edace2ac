"""Routes of consumer groups: members, lag, rebalances; resetting offsets and deleting groups."""

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from headrace.api.rest import schemas
from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import Problem
from headrace.api.rest.messages import OFFSET_MAX, TIMESTAMP_MAX
from headrace.api.rest.routing import After, Client, GroupId, Limit, blocking, document, make_router, page, settled
from headrace.client import group_admin
from headrace.client.core.errors import KafkaApiError
from headrace.client.group_admin import OffsetReset, PartitionKey, store, targets
from headrace.model.errors import ErrorCode

full = make_router("groups")


class GroupRow(BaseModel):
    group: str
    type: str
    state: str


class GroupList(BaseModel):
    groups: list[GroupRow]
    next: str | None


class MemberRow(BaseModel):
    member: str
    instance: str | None
    client: str
    host: str
    partitions: list[str]


class GroupView(GroupRow):
    assignor: str
    coordinator: str
    members: list[MemberRow]
    lag: int = Field(description="Records that the group has not read, over all partitions.")
    lag_seconds: float | None = Field(description="The age of the oldest of them.")


class LagRow(BaseModel):
    topic: str
    partition: int
    member: str | None
    committed: int | None
    end: int | None
    lag: int | None
    lag_seconds: float | None


class LagList(BaseModel):
    group: str
    offsets: list[LagRow]


class Rebalances(BaseModel):
    group: str
    rebalances: list[dict[str, Any]]


class Reset(BaseModel):
    """Target of an offset reset; exactly one field must be set."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"topic_name": "my-topic", "to": "earliest"}]}
    )

    topic_name: schemas.Name | None = Field(None, description="Default: every topic that the group has committed.")
    partitions: Annotated[list[schemas.PartitionNumber], Field(max_length=10_000)] | None = None
    to: Annotated[str, Field(pattern="^(earliest|latest)$")] | None = None
    offset: schemas.Offset | None = None
    timestamp: Annotated[int, Field(ge=0, le=TIMESTAMP_MAX, strict=True)] | None = None
    by: (
        Annotated[int, Field(ge=-OFFSET_MAX, le=OFFSET_MAX, strict=True, description="So many records forward")] | None
    ) = None
    dry_run: bool = False

    def wish(self) -> OffsetReset:
        given = [one for one in (self.to, self.offset, self.timestamp, self.by) if one is not None]
        if len(given) != 1:
            raise Problem(422, "specify exactly one of to, offset, timestamp and by")
        return OffsetReset(self.to == "earliest", self.to == "latest", self.offset, self.timestamp, self.by)


class ResetRow(BaseModel):
    topic: str
    partition: int
    before: int | None
    after: int


class ResetDone(BaseModel):
    group: str
    changed: bool
    offsets: list[ResetRow]


class Deleted(BaseModel):
    deleted: str


@full.get("/groups", response_model=GroupList)
async def list_groups(
    client: Client,
    limit: Limit = 100,
    after: After = None,
    state: Annotated[str | None, Query(max_length=40, description="Only those in this state, e.g. Stable.")] = None,
) -> Response:
    """Lists groups with their protocol and state."""
    rows = await _groups(client)
    wanted = {row.group: row for row in rows if state is None or row.state.lower() == state.lower()}
    part, following = page(list(wanted), limit, after)
    return document({"groups": [wanted[name]._asdict() for name in part], "next": following})


@full.get("/groups/{group}", response_model=GroupView)
async def describe_group(client: Client, group: GroupId) -> Response:
    """Returns the members of a group, their assignments and their lag."""
    await _must_exist(client, group)
    timeout_s = client.request_timeout_s

    def ask() -> tuple[Any, Any, list[group_admin.OffsetView]]:
        found, refused = group_admin.describe_groups(client.admin, [group], timeout_s)
        return found, refused, group_admin.offsets_of(client.admin, client.bootstrap, group, timeout_s)

    found, refused, offsets = await blocking(client, ask)
    if refused:
        raise KafkaApiError(refused[group].code(), refused[group].str())
    ages = [row.lag_seconds for row in offsets if row.lag_seconds is not None]
    totals = {"lag": sum(row.lag or 0 for row in offsets), "lag_seconds": max(ages, default=None)}
    return document({**found[group]._asdict(), **totals})


@full.get("/groups/{group}/lag", response_model=LagList)
async def group_lag(client: Client, group: GroupId) -> Response:
    """Returns committed offset, log end offset, and lag in records and seconds per partition."""
    await _must_exist(client, group)
    rows = await blocking(
        client,
        lambda: group_admin.offsets_of(client.admin, client.bootstrap, group, client.request_timeout_s),
    )
    return document({"group": group, "offsets": [row._asdict() for row in rows]})


@full.get("/groups/{group}/rebalances", response_model=Rebalances)
async def group_rebalances(client: Client, group: GroupId) -> Response:
    """Returns recent rebalances: cause, joined and departed members, and pause per member."""
    await _must_exist(client, group)
    rows = await blocking(
        client, lambda: client.read_rebalances(client.admin, client.bootstrap, group, client.request_timeout_s)
    )
    return document({"group": group, "rebalances": rows})


@full.post("/groups/{group}/reset", response_model=ResetDone)
async def reset_group(client: Client, group: GroupId, wanted: Reset) -> Response:
    """Resets the offsets of a group without members."""
    wish = wanted.wish()
    timeout_s = client.request_timeout_s
    before = await blocking(client, lambda: group_admin.committed_offsets(client.admin, group, timeout_s))
    places = await _places(client, wanted, before)
    if not places:
        raise Problem(404, f"{group} has committed nothing; name what to set with topic_name")

    def move() -> dict[PartitionKey, int]:
        after = targets(client.admin, places, before, wish, timeout_s)
        if not wanted.dry_run:
            store(client.admin, group, after, timeout_s)
        return after

    after = await blocking(client, move)
    rows = [
        {"topic": topic, "partition": partition, "before": before.get((topic, partition)), "after": offset}
        for (topic, partition), offset in sorted(after.items())
    ]
    return document({"group": group, "changed": not wanted.dry_run, "offsets": rows})


@full.delete("/groups/{group}", response_model=Deleted)
async def delete_group(client: Client, group: GroupId) -> Response:
    """Deletes a group without members, with its offsets."""
    done = client.admin.delete_consumer_groups([group], request_timeout=client.request_timeout_s)
    await settled(done[group])
    return document({"deleted": group})


async def _groups(client: ApiClients) -> list[group_admin.GroupRow]:
    return await blocking(client, lambda: group_admin.list_groups(client.admin, client.request_timeout_s))


async def _must_exist(client: ApiClients, group: str) -> None:
    """Raises GROUP_ID_NOT_FOUND if the group does not exist. Kafka describes such a group as Dead."""
    if all(row.group != group for row in await _groups(client)):
        raise KafkaApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")


async def _places(client: ApiClients, wanted: Reset, before: dict[PartitionKey, int]) -> list[PartitionKey]:
    topic = wanted.topic_name
    if topic is None:
        if wanted.partitions is not None:
            raise Problem(422, "partitions needs topic_name")
        return sorted(before)
    facts = await client.cluster.patiently(lambda: client.cluster.topic(topic))
    known = [one.partition for one in facts.partitions]
    chosen = known if wanted.partitions is None else sorted(set(wanted.partitions))
    missing = [number for number in chosen if number not in known]
    if missing:
        raise KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {missing[0]}")
    return [(topic, number) for number in chosen]
