"""A stream of messages, one JSON object a line, as fast as the broker takes them.

Decides how lines are cut from a body and what an upload is told at its end. Holds one part of the body and what the
publisher has room for; nothing grows with the length of the stream.
"""

from typing import Any

import orjson

from headrace.client.cluster import TopicFacts
from headrace.client.publisher import ANY_PARTITION, NOW, Acks, Upload
from headrace.gateway.bodies import Disconnected, Receive, body_parts, too_large
from headrace.gateway.encoding import Outgoing, outgoing
from headrace.gateway.problems import Answer, Problem, problem_of, to_json
from headrace.gateway.services import Services

# What nearly every line has, and what librdkafka takes as it is: texts, or nothing.
_SIMPLE = frozenset({"key", "value"})


async def upload(services: Services, facts: TopicFacts, receive: Receive, acks: Acks | None) -> Answer:
    progress = Upload(services.publisher)
    lines = _Lines(services.settings.body_bytes_max)
    try:
        async for part in body_parts(receive):
            await _send(facts, progress, lines, lines.cut(part), acks)
        await _send(facts, progress, lines, lines.last(), acks)
    except Problem as problem:
        await progress.finish()
        problem.more |= {"line": lines.number, "written": progress.acked}
        raise
    except Disconnected:
        await progress.finish()
        raise
    await progress.finish()
    return _answer(facts, progress)


def _answer(facts: TopicFacts, progress: Upload) -> Answer:
    if progress.failed:
        problem = problem_of(progress.failures[0])
        problem.more |= {"written": progress.acked, "failed": progress.failed}
        raise problem
    return Answer(200, to_json({"topic": facts.name, "written": progress.acked}))


class _Lines:
    """Cuts lines from parts of any length; counts them, for whoever wants to know which one was wrong."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""
        self.number = 0

    def cut(self, part: bytes) -> list[bytes]:
        lines = (self._rest + part).split(b"\n") if self._rest else part.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._bytes_max:
            self.number += 1
            raise too_large(self._bytes_max)
        return lines

    def last(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


async def _send(facts: TopicFacts, progress: Upload, lines: _Lines, cut: list[bytes], acks: Acks | None) -> None:
    """Whatever stands before a wrong line is sent."""
    ready: list[dict[str, Any]] = []
    try:
        for line in cut:
            lines.number += 1
            message = _parsed(line)
            if message is None:
                continue
            if isinstance(message, dict):
                ready.append(message)
                continue
            _check_partition(facts, message)
            # librdkafka takes none of these in bulk; a partition it even ignores without a word.
            if message.headers or message.timestamp_ms != NOW or message.partition != ANY_PARTITION:
                await progress.push(facts.name, ready, acks)
                ready = []
                await progress.push_one(facts.name, message, acks)
            else:
                ready.append(_in_bulk(message))
    finally:
        await progress.push(facts.name, ready, acks)


def _parsed(line: bytes) -> dict[str, Any] | Outgoing | None:
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if not line.strip():
            return None
        raise Problem(422, f"not a JSON object: {error}") from None
    if type(given) is dict and given.keys() <= _SIMPLE and type(given.get("value")) is str:
        key = given.get("key")
        if key is None:
            return {"value": given["value"]}
        if type(key) is str:
            return given
    return outgoing(given)


def _in_bulk(message: Outgoing) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if message.key is not None:
        made["key"] = message.key
    if message.value is not None:
        made["value"] = message.value
    return made


def _check_partition(facts: TopicFacts, message: Outgoing) -> None:
    if message.partition >= len(facts.partitions):
        raise Problem(422, f"{facts.name} has partitions 0 to {len(facts.partitions) - 1}")
