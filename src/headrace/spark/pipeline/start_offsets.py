"""Start offsets of a pipeline and end offsets of a backfill, stored before anything is read.

    starts.json      {source: {topic: {partition: offset}}}       where the stream began
    backfill.json    {"until": {source: …}, "done": false}        history that is read first, up to exactly there

Both are in the pipeline's state directory before its first batch, so that a pipeline that was killed continues with
the same offsets. The stream reads partitions that are created later from their beginning.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import Json, Positions, ends_of, plain
from headrace.client.reader.read_options import OffsetBound, ReadOptions, bound_of, read_options
from headrace.client.sync.client import Cluster
from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition
from headrace.pipeline.definition import Pipeline, SinkKind, Source
from headrace.pipeline.state import PipelineState
from headrace.spark.pipeline.retry_topic import starting, subscription

STARTS, BACKFILL = "starts", "backfill"
BACKFILL_SUFFIX = "+backfill"  # not a valid pipeline name
# Size of the batches of a backfill: what is repeated after a kill, and the interval of progress reports. A million
# records take seconds.
RECORDS_PER_BATCH = 1_000_000

_START_OPTIONS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")


def source_options(pipeline: Pipeline, bootstrap: str, source: Source) -> dict[str, str]:
    """Returns the options of format("headrace") for a source."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        **subscription(pipeline, source),
        "startingOffsets": starting(pipeline, source),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",  # aborted records must not be passed on
        "commitGroup": pipeline.group,
        **source.options,
    }


def from_offsets(options: Mapping[str, str], starts: Json) -> dict[str, str]:
    """Returns the options with these start offsets instead of any others."""
    kept = {name: value for name, value in options.items() if name.lower() not in _START_OPTIONS}
    return {**kept, "startingOffsets": json.dumps(starts)} if starts else dict(options)


def until_offsets(options: Mapping[str, str], ends: Json) -> dict[str, str]:
    """Returns the options with these end offsets and, unless configured otherwise, the batch size of a backfill."""
    named = {name.lower() for name in options}
    limit = {} if "maxoffsetspertrigger" in named else {"maxOffsetsPerTrigger": str(RECORDS_PER_BATCH)}
    return {**with_archive(options), **limit, "untilOffsets": json.dumps(ends)}


def with_archive(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of a read that includes the topics' archives. Archives hold committed records only, so
    `read_uncommitted` sources are unchanged.
    """
    named = {name.lower(): value for name, value in options.items()}
    committed = named.get("kafka.isolation.level") != "read_uncommitted"
    return {**options, "history": "true"} if committed and "history" not in named else dict(options)


def has_begun(state: PipelineState) -> bool:
    """Whether Spark has planned a batch. From there on the offsets in its checkpoint apply."""
    folder = state.checkpoint / "offsets"
    return folder.is_dir() and any(one.name.isdigit() for one in folder.iterdir())


def unfinished_backfill(state: PipelineState) -> dict[str, Json] | None:
    """Returns the end of the backfill by source; None if there is no backfill, or it is done."""
    found = state.read(BACKFILL)
    if found is None or found["done"]:
        return None
    until: dict[str, Json] = found["until"]
    return until


def finish_backfill(state: PipelineState) -> None:
    state.write(BACKFILL, {"until": unfinished_backfill(state), "done": True}, durable=True)


def fix_start_offsets(state: PipelineState, pipeline: Pipeline, bootstrap: str) -> dict[str, Json]:
    """Returns the start offsets of the stream by source. They are resolved until Spark has planned a batch, and fixed
    afterwards.
    """
    known: dict[str, Json] = state.read(STARTS) or {}
    if has_begun(state):
        return known
    with _locators(pipeline, bootstrap) as locators:
        found = {}
        for source, (locator, bound) in locators.items():
            partitions = locator.partitions(locator.topics())
            before = ends_of(known[source]) if source in known else locator.resolve(bound, partitions)
            found[source] = plain(_still_there(locator, partitions, before))
    state.write(STARTS, found, durable=True)
    return found


def _still_there(locator: OffsetResolver, partitions: list[TopicPartition], known: Positions) -> Positions:
    """Returns the offsets of the existing partitions. Partitions created since then start at their beginning."""
    return {**locator.earliest(one for one in partitions if one not in known)} | {
        one: known[one] for one in partitions if one in known
    }


def fix_backfill_range(
    state: PipelineState, main: PipelineState, pipeline: Pipeline, bootstrap: str, start: str
) -> None:
    """Fixes the range of a backfill: from `start` to the start of the stream, or to the current end if it has not
    begun.

    `state` is the pipeline's own state directory (`main`) if the stream has not begun, which then continues from
    there. Otherwise it is a second one with its own checkpoint.
    """
    if state.read(BACKFILL) is not None:
        return  # the range is fixed
    bound = bound_of(offsets=start)
    with _locators(pipeline, bootstrap, archives=True) as locators:
        starts, until = {}, {}
        for source, (locator, _) in locators.items():
            partitions = locator.partitions(locator.topics())
            ends = _ends(main, source, locator, partitions) if state is not main else locator.latest(partitions)
            first = _between(locator, bound, sorted(ends))
            starts[source] = plain({one: min(first[one], ends[one]) for one in ends})
            until[source] = plain(ends)
    state.write(STARTS, starts, durable=True)
    state.write(BACKFILL, {"until": until, "done": False}, durable=True)


def _ends(main: PipelineState, source: str, locator: OffsetResolver, partitions: list[TopicPartition]) -> Positions:
    """Returns where the stream began. It reads later partitions from their beginning, so they need no backfill."""
    began = ends_of((main.read(STARTS) or {}).get(source, {}))
    firsts = locator.earliest(partitions)
    return {one: max(began.get(one, firsts[one]), firsts[one]) for one in partitions}


def _between(locator: OffsetResolver, bound: OffsetBound, partitions: list[TopicPartition]) -> Positions:
    if bound.word == "latest":
        raise InvalidConfig("--from: the backfill needs a start before the end; use earliest, or offsets as JSON")
    firsts, given = locator.earliest(partitions), locator.resolve(bound, partitions)
    return {one: max(given[one], firsts[one]) for one in partitions}


def check_backfill_apart(main: PipelineState, pipeline: Pipeline) -> None:
    """Raises InvalidConfig unless a second query can read the history although the stream has begun."""
    if main.read(STARTS) is None:
        raise InvalidConfig(f"{pipeline.name}: its start offsets are unknown; reset it, then backfill it")
    if (main.checkpoint / "state").is_dir():
        raise InvalidConfig(
            f"{pipeline.name} keeps state (windows, joins, distinct rows), and history cannot be put into it "
            f"afterwards: `headrace pipeline reset {pipeline.name}`, then backfill, which reads everything in order"
        )
    if pipeline.sink.kind is SinkKind.PARQUET:
        raise InvalidConfig(
            "a Parquet directory supports one query only; backfill before the first start, or use delta"
        )


@contextmanager
def _locators(
    pipeline: Pipeline, bootstrap: str, *, archives: bool = False
) -> Iterator[dict[str, tuple[OffsetResolver, OffsetBound]]]:
    clusters: list[Cluster] = []
    found: dict[str, tuple[OffsetResolver, OffsetBound]] = {}
    try:
        for source in pipeline.streams:
            given = source_options(pipeline, bootstrap, source)
            options = read_options(with_archive(given) if archives else given, streaming=True)
            clusters.append(Cluster(options.client))
            found[source.name] = (_locator(clusters[-1], options), options.start)
        yield found
    finally:
        for cluster in clusters:
            cluster.close()


def _locator(cluster: Cluster, options: ReadOptions) -> OffsetResolver:
    if options.history:
        # Keeps the table libraries out of pipelines without archives.
        from headrace.archive.stream_history import ArchiveOffsetResolver

        return ArchiveOffsetResolver(cluster, options.subscription)
    return OffsetResolver(cluster, options.subscription, read_committed=options.read_committed)
