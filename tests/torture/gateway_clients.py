"""Clients of REST and gRPC that send and receive until they are stopped, and hang up now and then, at any moment.

Each connects again by itself when a process behind it was killed. What no client may see ends up in `failures`, or as a
violation in the history.
"""

import base64
import json
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx

from headrace.rpc import headrace_pb2 as pb
from headrace.rpc import headrace_pb2_grpc as stubs
from tests.torture.gateway_history import PARTITIONS, TOPIC, GatewayHistory, payload
from tests.torture.plan import Dice

TIMEOUT_S = 60.0
REST_S = 0.25  # of a writer after each request: long runs must fit into disks
PAUSE_S = 0.1  # before a client connects again
LIFE_RECORDS = (50, 1_000)  # of a member of a group, until it hangs up
SILENCE_S = 0.5  # then a follower goes on with another partition
SESSION_MS = 6_000
MESSAGES = f"/topics/{TOPIC}/messages"
POLLS, EVENTS, CALLS = "polls", "events", "calls"
# What a request may be answered with while processes are killed: the client tries again, or joins again.
FOR_NOW = {404, 409, 503}
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND}


class Unexpected(Exception):
    """An answer that no client should see."""


class Client(threading.Thread):
    def __init__(self, name: str, url: str, grpc_address: str, history: GatewayHistory, dice: Dice) -> None:
        super().__init__(name=name, daemon=True)  # a client that hangs must not keep the tests from ending
        self.url, self.grpc_address, self.history, self.dice = url, grpc_address, history, dice
        self.progress = 0
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._abort: Callable[[], object] = lambda: None  # ends what the client waits for

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self.url, timeout=TIMEOUT_S) as self.rest:
                while self.goes_on:
                    self._live_once()
        except Exception as error:
            self.failures.append(f"{self.name}: {error!r}")
            raise

    def _live_once(self) -> None:
        try:
            self.live()
        except (httpx.TransportError, OSError):
            self._stopping.wait(PAUSE_S)
        except grpc.RpcError as error:
            if error.code() not in _PASSING:
                raise
            self._stopping.wait(PAUSE_S)

    def live(self) -> None:
        """Until the client hangs up."""
        raise NotImplementedError

    @property
    def goes_on(self) -> bool:
        return not self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()
        with suppress(Exception):
            self._abort()

    def checked(self, answer: httpx.Response, *expected: int) -> bool:
        """Whether it succeeded; a refusal must be one of those that pass or that end a membership."""
        if answer.status_code in expected:
            return True
        problem = answer.json()
        if answer.status_code not in FOR_NOW or problem["status"] != answer.status_code:
            raise Unexpected(f"{answer.status_code} {answer.text}")
        self._stopping.wait(PAUSE_S)
        return False

    def raw(self, request: bytes) -> socket.socket:
        place = urlsplit(self.url)
        connection = socket.create_connection((place.hostname, place.port), timeout=TIMEOUT_S)
        connection.sendall(request)
        return connection


class RestWriter(Client):
    def live(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        numbers = self.history.new_numbers(self.dice.randrange(1, 30))
        if self.dice.random() < 0.1:
            self._hang_up(partition, numbers)
        else:
            self.dice.choice([self._single, self._batch, self._text, self._lines])(partition, numbers)
        self._stopping.wait(REST_S)

    def _single(self, partition: int, numbers: Sequence[int]) -> None:
        for number in numbers[:3]:
            body = b'{"partition": %d, "value": %b}' % (partition, payload(number))
            answer = self._post(body, "application/json")
            if self.checked(answer, 200):
                self._placed([number], partition, [answer.json()])

    def _batch(self, partition: int, numbers: Sequence[int]) -> None:
        rows = b",".join(b'{"partition":%d,"value":%b}' % (partition, payload(number)) for number in numbers)
        answer = self._post(b'{"messages": [%b]}' % rows, "application/json")
        if self.checked(answer, 200, 207):
            for number, row in zip(numbers, answer.json()["messages"], strict=True):
                if "offset" in row:
                    self._placed([number], partition, [row])

    def _text(self, partition: int, numbers: Sequence[int]) -> None:
        answer = self._post(payload(numbers[0]), "text/plain", {"partition": partition})
        if self.checked(answer, 200):
            self._placed(numbers[:1], partition, [answer.json()])

    def _lines(self, partition: int, numbers: Sequence[int]) -> None:
        answer = self._post(b"".join(self._line(partition, number) for number in numbers), "application/x-ndjson")
        if self.checked(answer, 200):
            assert answer.json()["written"] == len(numbers)
            self.history.placed_at(numbers, partition, [None] * len(numbers))
            self.progress += len(numbers)

    def _line(self, partition: int, number: int) -> bytes:
        encoded = base64.b64encode(payload(number))
        return b'{"partition": %d, "value_base64": "%b"}\n' % (partition, encoded)

    def _post(self, body: bytes, media_type: str, query: dict[str, int] | None = None) -> httpx.Response:
        return self.rest.post(MESSAGES, params=query, content=body, headers={"content-type": media_type})

    def _placed(self, numbers: Sequence[int], partition: int, rows: Sequence[dict[str, Any]]) -> None:
        self.history.placed_at(numbers, partition, [row["offset"] for row in rows])
        self.progress += len(numbers)

    def _hang_up(self, partition: int, numbers: Sequence[int]) -> None:
        """In the middle of a body, or before the response: nobody knows what was written."""
        body = b"".join(self._line(partition, number) for number in numbers)
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/x-ndjson\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self.raw(request[: self.dice.randrange(1, len(request) + 1)]).close()


class RpcClient(Client):
    def live(self) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
        with grpc.insecure_channel(self.grpc_address, options=options) as channel:
            self.call(stubs.KafkaBrokerStub(channel))

    def call(self, broker: Any) -> None:
        raise NotImplementedError


class RpcWriter(RpcClient):
    def call(self, broker: Any) -> None:
        while self.goes_on and self.dice.random() > 0.1:
            partition, numbers = self.dice.randrange(PARTITIONS), self.history.new_numbers(self.dice.randrange(1, 30))
            if self.dice.random() < 0.5:
                answer = broker.Produce(self._request(partition, numbers), timeout=TIMEOUT_S)
                self._placed(numbers, partition, answer.offsets)
            else:
                self._stream(broker, partition, numbers)
            self._stopping.wait(REST_S)

    def _stream(self, broker: Any, partition: int, numbers: Sequence[int]) -> None:
        parts = [numbers[:10], numbers[10:20], numbers[20:]]
        parts = [part for part in parts if part]
        cut = self.dice.randrange(10)  # sometimes the client cancels before it has read every ack
        stream = broker.StreamProduce(iter([self._request(partition, part) for part in parts]), timeout=TIMEOUT_S)
        for index, ack in enumerate(stream):
            if ack.index != index:
                raise Unexpected(f"ack {ack.index} came as number {index}")
            if not ack.HasField("failure"):
                self._placed(parts[index], partition, ack.offsets)
            if index == cut:
                stream.cancel()
                return

    def _request(self, partition: int, numbers: Sequence[int]) -> pb.ProduceRequest:
        records = [pb.Record(value=payload(number)) for number in numbers]
        return pb.ProduceRequest(topic=TOPIC, partition=partition, records=records)

    def _placed(self, numbers: Sequence[int], partition: int, offsets: Sequence[int]) -> None:
        self.history.placed_at(numbers, partition, offsets)
        self.progress += len(numbers)


class Poller(Client):
    """A consumer instance. One that may lose a response names the last one that it has received."""

    def live(self) -> None:
        names = self.dice.random() < 0.7
        joining = {"topics": [TOPIC], "session_timeout_ms": SESSION_MS}
        answer = self.rest.post(f"/api/v1/groups/{POLLS}/consumers", json=joining)
        if not self.checked(answer, 201):
            return
        path, last = f"/api/v1/groups/{POLLS}/consumers/{answer.json()['consumer']}", 0
        for _ in range(self.dice.randrange(5, 60)):
            if not self.goes_on:
                break
            if names and self.dice.random() < 0.2:
                self._abandon(path, last)
            polled = self._poll(path, last if names else None)
            if polled is None:
                return
            last = polled["delivery"]
            if polled["messages"] and self.dice.random() < 0.7 and not self._commit(path, last if names else None):
                return
        self.rest.delete(path)

    def _poll(self, path: str, delivery: int | None) -> dict[str, Any] | None:
        begin = self.history.acknowledged(POLLS)
        more = {} if delivery is None else {"delivery": delivery}
        query = {"wait_ms": 1_000, "max_records": self.dice.randrange(1, 200), **more}
        answer = self.rest.get(f"{path}/messages", params=query)
        if not self.checked(answer, 200):
            return None
        polled: dict[str, Any] = answer.json()
        for one in polled["messages"]:
            self.history.arrived(POLLS, one["partition"], one["offset"], one["value"], begin)
        self.progress += len(polled["messages"])
        return polled

    def _abandon(self, path: str, delivery: int) -> None:
        """A poll whose response is not read, or not to its end."""
        request = f"GET {path}/messages?wait_ms=1000&delivery={delivery} HTTP/1.1\r\nHost: soak\r\n\r\n"
        with self.raw(request.encode()) as connection:
            if self.dice.random() < 0.7:
                select.select([connection], [], [], TIMEOUT_S)
                connection.recv(self.dice.randrange(1, 2_000))

    def _commit(self, path: str, delivery: int | None) -> bool:
        answer = self.rest.post(f"{path}/offsets", json={} if delivery is None else {"delivery": delivery})
        if not self.checked(answer, 200):
            return False
        rows = answer.json()["offsets"]
        self.history.committed(POLLS, {row["partition"]: row["offset"] for row in rows}, told=True)
        return True


def _events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Whole events only: a client ignores one that was cut."""
    event: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        else:
            if "data" in event:
                yield event
            event = {}


class Streaming(Client):
    """A client of a response without end, which hangs up after a number of records."""

    def lines(self, path: str, silence_s: float = TIMEOUT_S, **headers: str) -> Iterator[str]:
        with self.rest.stream("GET", path, headers=headers, timeout=silence_s) as answer:
            if answer.status_code != 200:
                answer.read()
            if self.checked(answer, 200):
                self.header = answer.headers
                stream = answer.extensions["network_stream"].get_extra_info("socket")
                self._abort = lambda: stream.shutdown(socket.SHUT_RDWR)
                if self.goes_on:
                    yield from answer.iter_lines()


class GroupListener(Streaming):
    """Events of a group; acknowledges by the id with which it connects again, and sometimes by a commit."""

    last_id = ""

    def live(self) -> None:
        begin, left = self.history.acknowledged(EVENTS), self.dice.randrange(*LIFE_RECORDS)
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        latest: dict[int, int] = {}
        for event in _events(self.lines(f"/api/v1/groups/{EVENTS}/stream?topic={TOPIC}", **headers)):
            if event.get("event", "message") != "message":
                continue
            one = json.loads(event["data"])
            partition, offset = one["partition"], one["offset"]
            if offset <= latest.get(partition, -1):
                self.history.violated(
                    f"{EVENTS}: {partition}@{offset} came after {latest[partition]} on one connection"
                )
            latest[partition] = offset
            self.history.arrived(EVENTS, partition, offset, one["value"], begin)
            self.last_id = event["id"]
            self.progress += 1
            left -= 1
            if left == 0:
                return
            if left % 100 == 0:
                self._commit()

    def _commit(self) -> None:
        path = f"/api/v1/groups/{EVENTS}/consumers/{self.header['headrace-consumer']}/offsets"
        answer = self.rest.post(path, json={"event_id": self.last_id})
        if self.checked(answer, 200):
            rows = answer.json()["offsets"]
            self.history.committed(EVENTS, {row["partition"]: row["offset"] for row in rows}, told=True)


class TopicListener(Streaming):
    """Events of the whole topic: from one connection to the next no record is left out, and none comes twice."""

    def __init__(self, *arguments: Any, offsets: list[int]) -> None:
        super().__init__(*arguments)
        self.offsets = offsets
        self._last_id = ",".join(str(offset) for offset in offsets)

    def live(self) -> None:
        left = self.dice.randrange(50, 400)
        for event in _events(self.lines(f"/api/v1/topics/{TOPIC}/stream", **{"last-event-id": self._id()})):
            self._last_id = event.get("id", self._last_id)
            if event.get("event", "message") == "message":
                self.take(json.loads(event["data"]))
                left -= 1
            if left == 0:
                return

    def _id(self) -> str:
        return self._last_id if self._last_id.startswith(TOPIC) else f"{TOPIC}:0:{self._last_id}"

    def take(self, one: dict[str, Any]) -> None:
        partition, offset = one["partition"], one["offset"]
        if offset != self.offsets[partition]:
            self.history.violated(f"{self.name}: {partition}@{offset} came instead of {self.offsets[partition]}")
        self.history.check_value(f"{self.name}: {partition}@{offset}", one["value"])
        self.offsets[partition] = offset + 1
        self.progress += 1


class Follower(TopicListener):
    """Lines of one partition after the other, each for a while, or until there are no more."""

    _lives = 0

    def live(self) -> None:
        left = self.dice.randrange(10, 1_000)
        partition = self._lives % PARTITIONS
        self._lives += 1
        path = f"/topics/{TOPIC}/partitions/{partition}/messages?follow=true&offset={self.offsets[partition]}"
        for line in self.lines(path, SILENCE_S, accept="application/x-ndjson"):
            self.take(json.loads(line))
            left -= 1
            if left == 0:
                return


class RpcConsumer(RpcClient):
    """A consume stream that commits by numbers, by its own commits or those of the server."""

    def call(self, broker: Any) -> None:
        requests: queue.SimpleQueue[pb.StreamConsumeRequest | None] = queue.SimpleQueue()
        auto_commit, left = self.dice.random() < 0.5, self.dice.randrange(*LIFE_RECORDS)
        subscribe = pb.Subscribe(
            group_id=CALLS, topics=[TOPIC], session_timeout_ms=SESSION_MS, auto_commit=auto_commit, max_records=50
        )
        requests.put(pb.StreamConsumeRequest(subscribe=subscribe))
        begin = self.history.acknowledged(CALLS)
        stream = broker.StreamConsume(iter(requests.get, None), wait_for_ready=True)
        self._abort = stream.cancel
        try:
            for event in stream if self.goes_on else ():
                if event.WhichOneof("event") == "committed" and not event.committed.HasField("failure"):
                    rows = event.committed.offsets
                    self.history.committed(CALLS, {row.partition: row.offset for row in rows}, told=True)
                elif event.WhichOneof("event") == "records":
                    left -= self._take(event.records, begin)
                    requests.put(self._answer(event.records.number, auto_commit))
                if left <= 0:
                    return
        finally:
            stream.cancel()
            requests.put(None)

    def _take(self, records: pb.RecordsEvent, begin: Sequence[int]) -> int:
        taken = 0
        for part in records.partitions:
            for one in part.records:
                self.history.arrived(CALLS, part.partition, one.offset, one.value, begin)
                taken += 1
        self.progress += taken
        return taken

    def _answer(self, number: int, auto_commit: bool) -> pb.StreamConsumeRequest:
        if auto_commit:
            return pb.StreamConsumeRequest(acknowledge=pb.Acknowledge(number=number))
        return pb.StreamConsumeRequest(commit=pb.Commit(number=number))


class Auditor(Client):
    """Looks at what the groups have committed: never more than their clients have received."""

    def live(self) -> None:
        for group in (POLLS, EVENTS, CALLS):
            answer = self.rest.get(f"/consumers/{group}/offsets", params={"topic": TOPIC})
            if self.checked(answer, 200):
                rows = answer.json()["offsets"]
                self.history.committed(group, {row["partition"]: row["offset"] for row in rows}, told=False)
                self.progress += 1
        self._stopping.wait(0.5)
