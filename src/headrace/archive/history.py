"""Reads a topic's archive and the topic as one: the table below one offset in each partition, the topic from there on.
One commit of the table determines both.

The table is read before the topic's end offsets. What the archive worker commits in between is read from the topic,
which still has it: retention follows the archive only after a delay.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from headrace.archive.decode import ValueSchema
from headrace.archive.settings import read_settings
from headrace.archive.table import Coverage, View, open_table
from headrace.client.reader.arrow_reader import ROWS_PER_BATCH, DataLossError
from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import Positions
from headrace.client.sync.client import Cluster, TopicView
from headrace.lake.parquet import open_folder
from headrace.model.ids import TopicPartition

# Each attempt reads a newer commit. A second one is needed only if retention does not wait for the archive.
LOOKS_MAX = 3
NOTHING = View([], Coverage(), 0)


class ArchivedFile(NamedTuple):
    """A file of the archive, and the partitions to read from it; None: all. Picklable."""

    path: str
    partitions: frozenset[int] | None


class Cut(NamedTuple):
    files: list[ArchivedFile]
    starts: Positions  # first offsets to read from the topic
    ends: Positions
    decodings: Mapping[str, ValueSchema | None]  # of the topics that have an archive


def cut(
    cluster: Cluster,
    locator: OffsetResolver,
    topics: Mapping[str, TopicView],
    wanted: list[TopicPartition],
    *,
    fail_on_data_loss: bool,
) -> Cut:
    files: list[ArchivedFile] = []
    starts: Positions = {}
    decodings: dict[str, ValueSchema | None] = {}
    for name in sorted({one.topic for one in wanted}):
        mine = [one for one in wanted if one.topic == name]
        settings = read_settings(cluster, topics[name])
        if settings is not None:
            decodings[name] = settings.decoding
        table = open_table(settings, create=False) if settings is not None else None
        for look in range(LOOKS_MAX):
            view = table.view() if table is not None else NOTHING
            firsts = locator.earliest(mine)
            gone = [one for one in mine if view.coverage.ends.get(one.partition, firsts[one]) < firsts[one]]
            if not gone:
                break
            if look == LOOKS_MAX - 1 and fail_on_data_loss:
                raise _loss(gone[0], view, firsts)
        starts |= {one: view.coverage.position(one.partition, firsts[one]) for one in mine}
        every = len(mine) == len(topics[name].leaders)
        chosen = None if every else frozenset(one.partition for one in mine)
        files += [ArchivedFile(path, chosen) for path in view.files]
    return Cut(files, starts, locator.latest(wanted), decodings)


def _loss(one: TopicPartition, view: View, firsts: Positions) -> DataLossError:
    return DataLossError(
        f"{one}: offsets {view.coverage.ends[one.partition]} to {firsts[one] - 1} are neither archived nor in the "
        "topic. Retention or DeleteRecords removed them before they were archived; the topic config "
        "archive.before.delete=true prevents that. Set failOnDataLoss to false to read the rest."
    )


def read_file(file: ArchivedFile, schema: pa.Schema) -> Iterator[Any]:
    """Yields rows of an archived file as record batches of this schema."""
    filesystem, place = open_folder(file.path)
    names = list(schema.names)
    read = names if file.partitions is None else list(dict.fromkeys([*names, "partition"]))
    with pq.ParquetFile(place, filesystem=filesystem) as parquet:
        for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=read):
            rows = batch if file.partitions is None else _of_partitions(batch, file.partitions)
            if rows.num_rows:
                arrays = [rows.column(field.name).cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _of_partitions(batch: pa.RecordBatch, wanted: frozenset[int]) -> pa.RecordBatch:
    return batch.filter(pc.is_in(batch.column("partition"), pa.array(sorted(wanted), pa.int32())))
