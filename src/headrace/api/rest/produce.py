"""POST …/topics/{topic}/messages: a single message, a batch, plain text or bytes, or a stream of lines without a limit.

The only path that is called tens of thousands of times a second, so `gate.py` serves it before FastAPI. FastAPI's
route of the same name exists for the OpenAPI document and ends here too. `client/aio/producer.py` sends the messages.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import HttpResponse, Problem, problem_of, to_json
from headrace.api.rest.http import Receive, Scope, header, parse_json, read_body
from headrace.api.rest.messages import PARTITION_MAX, Outgoing, Text, outgoing, text_of
from headrace.api.rest.upload import upload
from headrace.client.aio.client import TopicMetadata
from headrace.client.aio.producer import ANY_PARTITION, RecordMetadata
from headrace.client.aio.producer_pool import Acks
from headrace.client.core.errors import PartitionDeleted

# A batch has a single response: this many messages fit into a second of a slow disk. Streams have no such limit.
BATCH_MESSAGES_MAX = 10_000
JSON = b"application/json"
NDJSON = b"application/x-ndjson"
_PARAMETERS = frozenset({"acks", "key", "partition"})


async def produce(services: ApiClients, topic: str, scope: Scope, receive: Receive) -> HttpResponse:
    query = scope["query_string"]
    acks, parameters = (None, {}) if not query else _parameters(query)
    facts = await services.topic_to_produce(topic)
    media_type = _media_type(scope)
    if media_type == NDJSON:
        return await upload(services, facts, scope, receive, acks)
    body = await read_body(scope, receive, services.settings.body_bytes_max)
    if media_type != JSON:
        return await _one(services, facts, _plain(media_type, body, parameters), acks)
    given = parse_json(body)
    if type(given) is dict and "messages" in given:
        return await _many(services, facts, given, text_of(body, given), acks)
    return await _one(services, facts, outgoing(given, text_of(body, given)), acks)


async def _one(services: ApiClients, facts: TopicMetadata, message: Outgoing, acks: Acks | None) -> HttpResponse:
    await services.check_partition(facts, message.partition)
    try:
        place = await services.singles.send(facts.name, message, acks)
    except PartitionDeleted:  # not written: retried if there is a new topic, else the metadata request raises
        facts = await services.topic_to_produce(facts.name)
        await services.check_partition(facts, message.partition)
        place = await services.singles.send(facts.name, message, acks)
    return HttpResponse(200, to_json({"topic": facts.name, **_shown(place)}))


async def _many(
    services: ApiClients, facts: TopicMetadata, given: Mapping[str, Any], text: Text, acks: Acks | None
) -> HttpResponse:
    """Sends a batch. Each message has its own outcome, in request order; the status is 207 if some messages failed."""
    rows = given["messages"]
    if len(given) > 1 or type(rows) is not list or not 0 < len(rows) <= BATCH_MESSAGES_MAX:
        raise Problem(422, f'write {{"messages": […]}} with 1 to {BATCH_MESSAGES_MAX:,} messages, and nothing else')
    texts = text["messages"]
    messages = [_numbered(number, row, texts[number]) for number, row in enumerate(rows)]
    for message in messages:
        await services.check_partition(facts, message.partition)
    sent = [_sent(services, facts.name, message, acks) for message in messages]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    failures = [one for one in outcomes if isinstance(one, BaseException)]
    if len(failures) == len(outcomes):
        raise problem_of(failures[0])
    shown = [_shown(one) if isinstance(one, RecordMetadata) else _shown_failure(one) for one in outcomes]
    document = {"topic": facts.name, "messages": shown, "failed": len(failures)}
    return HttpResponse(207 if failures else 200, to_json(document))


def _sent(services: ApiClients, topic: str, message: Outgoing, acks: Acks | None) -> asyncio.Future[RecordMetadata]:
    """Sends one message. Not a coroutine, because each of ten thousand messages would be a task."""
    try:
        return services.publisher.send(
            topic,
            message.value,
            message.key,
            partition=message.partition,
            timestamp_ms=message.timestamp_ms,
            headers=message.headers,
            acks=acks,
        )
    except Exception as error:  # the queue is full for this message; others are in flight and have outcomes
        refused: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        refused.set_exception(error)
        return refused


def _numbered(number: int, row: Any, text: Text) -> Outgoing:
    try:
        return outgoing(row, text)
    except Problem as problem:
        raise Problem(problem.status, f"messages[{number}]: {problem.detail}") from None


def _shown(place: RecordMetadata) -> dict[str, Any]:
    return {"partition": place.partition, "offset": place.offset, "timestamp": place.timestamp_ms}


def _shown_failure(error: BaseException) -> dict[str, Any]:
    problem = problem_of(error)
    code = problem.code
    return {
        "error": problem.detail,
        "kafka_code": None if code is None else int(code),
        "kafka_error": None if code is None else code.name,
        "retriable": problem.retriable,
    }


def _media_type(scope: Scope) -> bytes:
    given = header(scope, b"content-type")
    if given is None:
        raise Problem(415, "set the Content-Type, for example -H 'Content-Type: application/json'")
    return given.partition(b";")[0].strip().lower()


def _plain(media_type: bytes, body: bytes, parameters: Mapping[str, str]) -> Outgoing:
    if media_type == b"text/plain":
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Problem(
                400, f"the body is not UTF-8 text: {error.reason}; send bytes as application/octet-stream"
            ) from None
    elif media_type != b"application/octet-stream":
        raise Problem(
            415,
            "a message comes as application/json, text/plain or application/octet-stream, "
            f"and many as application/x-ndjson; not as {media_type.decode('latin-1')}",
        )
    key = parameters.get("key")
    return Outgoing(body, None if key is None else key.encode(), _partition(parameters))


def _partition(parameters: Mapping[str, str]) -> int:
    partition = parameters.get("partition")
    if partition is None:
        return ANY_PARTITION
    if partition.isascii() and partition.isdigit() and int(partition[:11]) <= PARTITION_MAX:
        return int(partition)
    raise Problem(422, f"partition={partition}: a partition is a whole number from 0 on")


def _parameters(query: bytes) -> tuple[Acks | None, Mapping[str, str]]:
    try:
        given = parse_qs(query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise Problem(422, "the part behind the question mark is not name=value&name=value in UTF-8") from None
    unknown = given.keys() - _PARAMETERS
    if unknown:
        raise Problem(422, f"no parameter {min(unknown)!r}; there are acks, key and partition")
    values = {name: texts[-1] for name, texts in given.items()}
    _partition(values)  # validated even with a JSON body, which ignores it
    acks = values.get("acks")
    if acks is None:
        return None, values
    try:
        return Acks(acks), values
    except ValueError:
        raise Problem(422, f"acks={acks}: write all, leader or none") from None
