"""A program of its own: loads a gateway in front of a broker on disk, prints JSON.

python -m bench.gateway_load requests SECONDS    single messages over 64 connections, beside an empty handler
python -m bench.gateway_load beside PAIRS        what a Kafka client sees of the broker meanwhile, without the disk, and
                                                 what it sees while an empty handler has the same load
python -m bench.gateway_load disk PAIRS          the same where everybody waits for the same disk, and what the disk
                                                 alone gives beside REST
python -m bench.gateway_load lines COUNT         NDJSON up and down
python -m bench.gateway_load events CLIENTS      server-sent events to that many at once
"""

import asyncio
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

import psutil

from bench import tools
from bench.brokers import free_port
from headrace.testing import LocalBroker

CONNECTIONS = 64
WARM_UP_S = 1
PACED_RATE = 1_000
# Of each measurement without and with load. Short, so that there can be many: a disk or a processor that somebody else
# holds up for a moment spoils one of them, and the median of many does not care.
PAIRED_S = 2
PARTITIONS = 4
EVENTS = 20
_PATIENCE_S = 120.0
# A message of 100 bytes with a key, as the issue of a small service would be.
_VALUE = "x" * 100
_MULTIPLIERS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
_LUA = """\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"key": "user-1", "value": "%s"}'
"""


def call(url: str, path: str, document: object) -> None:
    body = json.dumps(document).encode()
    urlopen(Request(f"{url}{path}", body, {"content-type": "application/json"}), timeout=_PATIENCE_S).read()


@contextmanager
def gateway(folder: Path, **settings: str) -> Iterator[LocalBroker]:
    configs = {"group.initial.rebalance.delay.ms": "0", **settings}
    with LocalBroker(data_dir=folder / "data", gateway=True, settings=configs) as broker:
        call(broker.http_url, "/topics", {"name": "bench", "partitions": PARTITIONS})
        yield broker


@contextmanager
def empty_handler() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.empty_app", str(port)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wrk(folder: Path, url: str, seconds: int) -> tuple[float, float]:
    """Requests a second and their p99 in ms; everything must have been answered with a success."""
    done = subprocess.run(_wrk_command(folder, url, seconds), capture_output=True, text=True, check=True)
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        sys.exit(f"some requests failed:\n{done.stdout}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", done.stdout)
    if rate is None or p99 is None:
        sys.exit(f"cannot parse the output of wrk:\n{done.stdout}")
    return float(rate[1]), float(p99[1]) * _MULTIPLIERS_MS[p99[2]]


def _wrk_command(folder: Path, url: str, seconds: int) -> list[str]:
    script = folder / "post.lua"
    script.write_text(_LUA % _VALUE)
    options = ["-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--latency", "--timeout", "30s"]
    return ["wrk", *options, "-s", str(script), url]


def requests(folder: Path, seconds: int) -> dict[str, float]:
    with gateway(folder) as broker, empty_handler() as empty:
        target = _messages_of(broker)
        wrk(folder, target, WARM_UP_S)
        wrk(folder, f"{empty}/empty", WARM_UP_S)
        # One after the other, twice: the machine's speed drifts.
        pairs = [(wrk(folder, f"{empty}/empty", seconds), wrk(folder, target, seconds)) for _ in range(2)]
    return {
        "http_rate": median(ours[0] for _, ours in pairs),
        "http_p99": median(ours[1] for _, ours in pairs),
        "empty_rate": median(theirs[0] for theirs, _ in pairs),
        "empty_share": median(ours[0] / theirs[0] for theirs, ours in pairs),
    }


def paced_p99(broker: LocalBroker, topic: str) -> float:
    """What a Kafka producer waits for its acks; the topic is made for it."""
    call(broker.http_url, "/topics", {"name": topic, "partitions": 1})
    count = PACED_RATE * PAIRED_S
    command = [str(tools.program("load")), "latency", f"brokers={broker.bootstrap}", f"topic={topic}", "limit_s=300"]
    command += [f"count={count}", f"rate={PACED_RATE}", f"skip={count // 10}", "conf.acks=all", "conf.linger.ms=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures["ack_p99"]


def bare_p99(folder: Path) -> float:
    command = [sys.executable, "-m", "bench.bare_sync", str(folder / "bare"), str(PACED_RATE * PAIRED_S)]
    return float(subprocess.run([*command, str(PACED_RATE)], capture_output=True, text=True, check=True).stdout)


def beside(folder: Path, pairs: int) -> dict[str, float]:
    with gateway(folder, **{"log.flush.policy": "replicated"}) as broker, empty_handler() as empty:
        return _beside(folder, pairs, broker, empty)


def disk(folder: Path, pairs: int) -> dict[str, float]:
    with gateway(folder) as broker, empty_handler() as empty:
        return _beside(folder, pairs, broker, empty, bare_ratio=(_messages_of(broker), lambda: bare_p99(folder)))


Turn = tuple[str, Callable[[], float]]  # the address that is under load, and what is measured without and with it


def _beside(folder: Path, pairs: int, broker: LocalBroker, empty: str, **more: Turn) -> dict[str, float]:
    """Each turn's ratio by its name; more of the one that is about REST."""
    topics = (f"paced-{number}" for number in itertools.count())

    def paced() -> float:
        return paced_p99(broker, next(topics))

    turns: dict[str, Turn] = {
        "empty_ratio": (f"{empty}/empty", paced),
        "beside_ratio": (_messages_of(broker), paced),
        **more,
    }
    for target, _ in turns.values():
        wrk(folder, target, WARM_UP_S)
    # In turn, again and again: the machine's speed drifts.
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for _ in range(pairs):
        for name, (target, measure) in turns.items():
            rows[name].append(_pair(folder, target, measure))
    return {
        "alone_p99": median(alone for alone, _ in rows["beside_ratio"]),
        "beside_p99": median(loaded for _, loaded in rows["beside_ratio"]),
        **{name: median(loaded / alone for alone, loaded in found) for name, found in rows.items()},
    }


def _messages_of(broker: LocalBroker) -> str:
    return f"{broker.http_url}/topics/bench/messages"


def _pair(folder: Path, target: str, measure: Callable[[], float]) -> tuple[float, float]:
    """Without load, then beside it."""
    alone = measure()
    with _load(folder, target):
        return alone, measure()


@contextmanager
def _load(folder: Path, target: str) -> Iterator[None]:
    process = subprocess.Popen(_wrk_command(folder, target, PAIRED_S + 5), stdout=subprocess.DEVNULL)
    try:
        time.sleep(WARM_UP_S)
        yield
    finally:
        process.kill()
        process.wait()


def lines(folder: Path, count: int) -> dict[str, float]:
    source = folder / "lines"
    with source.open("w") as out:
        out.writelines(f'{{"key": "user-{number % 1000}", "value": "{_VALUE}"}}\n' for number in range(count))
    with gateway(folder) as broker:
        path = f"{broker.http_url}/api/v1/topics/bench/messages"
        (child,) = [
            one for one in psutil.Process(broker.pid).children() if "headrace.app.rest_process" in one.cmdline()
        ]
        up = ["curl", "-sS", "-X", "POST", "-H", "Content-Type: application/x-ndjson", "-T", str(source), path]
        cpu_before, start = _cpu_s(child), time.monotonic()
        written = json.loads(subprocess.run(up, capture_output=True, check=True).stdout)["written"]
        up_s = time.monotonic() - start
        cpu_between, start = _cpu_s(child), time.monotonic()
        subprocess.run(["curl", "-sS", "-o", os.devnull, path], check=True)
        down_s, cpu_after = time.monotonic() - start, _cpu_s(child)
    if written != count:
        sys.exit(f"{written} of {count} lines were written")
    return {
        "lines_up": count / up_s,
        "lines_up_cpu": (cpu_between - cpu_before) / count * 1e6,
        "lines_down": count / down_s,
        "lines_down_cpu": (cpu_after - cpu_between) / count * 1e6,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def events(folder: Path, clients: int) -> dict[str, float]:
    with gateway(folder) as broker:
        return asyncio.run(_events(broker, clients))


async def _events(broker: LocalBroker, clients: int) -> dict[str, float]:
    host, port = broker.http_url.removeprefix("http://").split(":")
    arrivals: list[float] = []
    readers = [await _listen(host, int(port), f"bench-{number}") for number in range(clients)]
    await asyncio.gather(*(_until_assigned(reader) for reader, _ in readers))
    sent: dict[str, float] = {}
    tasks = [asyncio.create_task(_receive(reader, sent, arrivals)) for reader, _ in readers]
    for number in range(EVENTS):
        value = f"event-{number}"
        sent[value] = time.monotonic()
        await asyncio.to_thread(call, broker.http_url, "/topics/bench/messages", {"value": value, "partition": 0})
        await asyncio.sleep(0.1)
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*tasks)
    for _, writer in readers:
        writer.close()
    arrivals.sort()
    return {
        "event_p50": arrivals[len(arrivals) // 2] * 1e3,
        "event_p99": arrivals[len(arrivals) * 99 // 100] * 1e3,
        "events_missed": float(clients * EVENTS - len(arrivals)),
    }


async def _listen(host: str, port: int, group: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /api/v1/groups/{group}/stream?topic=bench HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return reader, writer


async def _until_assigned(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await reader.readuntil(b"event: assigned")


async def _receive(reader: asyncio.StreamReader, sent: dict[str, float], arrivals: list[float]) -> None:
    seen = 0
    while seen < EVENTS:
        line = await reader.readline()
        if line.startswith(b"data: {"):
            arrivals.append(time.monotonic() - sent[json.loads(line[6:])["value"]])
            seen += 1


_MODES = {"requests": requests, "beside": beside, "disk": disk, "lines": lines, "events": events}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps(_MODES[sys.argv[1]](Path(work), int(sys.argv[2]))))
