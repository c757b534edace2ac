"""Records of the retry topic, which the pipeline reads with their original topic, partition and offset.

`retry-dead` produces a dead-letter record to the retry topic unchanged, with its headers and its own position after
the record's headers. The pipeline reads the topic beside each source and selects its own records. A new checkpoint
reads the originals again, so it skips records that were retried before it began, unless the original precedes its
start offsets:

    retries.json    {partition: offset}     the end of the dead-letter topic when the checkpoint began
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import Json
from headrace.client.reader.read_options import Subscription
from headrace.client.sync.client import Cluster, create_topic_if_missing
from headrace.pipeline.dead_letters import DEAD_HEADERS, DEAD_LETTER, DEAD_SOURCE, KEPT
from headrace.pipeline.definition import Pipeline, Source
from headrace.pipeline.state import PipelineState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RETRIES = "retries"
_FLAGS = re.compile(r"\(\?[aimsux]+\)")  # flags of a whole expression, which are allowed only at its beginning
# Positions from the end of the headers; element_at counts from -1.
_AT = {name: at for at, name in enumerate(reversed((DEAD_SOURCE, *DEAD_HEADERS, DEAD_LETTER)), 1)}


def whole(pattern: str, also: str | None = None) -> str:
    """Anchors a pipeline's topic pattern: `orders` must not match the pipeline's own `orders.dead`. The data source,
    like Spark's Kafka connector, accepts a match anywhere in a name.
    """
    flags = _FLAGS.match(pattern)
    at = flags.end() if flags else 0
    other = f"|^{re.escape(also)}$" if also is not None else ""
    return f"{pattern[:at]}^(?:{pattern[at:]})${other}"


def subscription(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """Returns the subscription of a source: its topics, and the retry topic if there is one."""
    if source.pattern:
        return {"subscribePattern": whole(source.pattern, pipeline.retry_topic)}
    retry = (pipeline.retry_topic,) if pipeline.retry_topic else ()
    return {"subscribe": ",".join((*source.topics, *retry))}


def starting(pipeline: Pipeline, source: Source) -> str:
    """Returns the source's `startingOffsets`. Offsets as JSON do not contain the retry topic, which is added and read
    from its beginning.
    """
    if pipeline.retry_topic is None or not source.starting.lstrip().startswith("{"):
        return source.starting
    try:
        given = json.loads(source.starting)
    except ValueError:
        return source.starting  # the data source reports the error
    return json.dumps({pipeline.retry_topic: {"0": -2}} | given) if isinstance(given, dict) else source.starting


def pin_retries(state: PipelineState, pipeline: Pipeline, cluster: Cluster, *, has_begun: bool) -> Json:
    """Returns the end of the dead-letter topic when this checkpoint began. Pinned before anything is read."""
    if pipeline.retry_topic is None or pipeline.dead_letters is None:
        return {}
    create_topic_if_missing(cluster, pipeline.retry_topic, KEPT)
    known: Json | None = state.read(RETRIES)
    if known is not None or has_begun:
        return known or {}
    dead = Subscription(topics=(pipeline.dead_letters,))
    locator = OffsetResolver(cluster, dead, read_committed=True)
    ends = locator.latest(locator.partitions(locator.topics(), all_named=False))
    found = {str(one.partition): end for one, end in ends.items()}
    state.write(RETRIES, found, durable=True)
    return found


def as_first_read(
    pipeline: Pipeline, source: Source, raw: "DataFrame", starts: Json, before: Mapping[str, Any]
) -> "DataFrame":
    """Returns the records of the source's topics and those of the retry topic that belong to it, with their original
    position.
    """
    from pyspark.sql import functions as f

    if pipeline.retry_topic is None:
        return raw
    is_retried = f.col("topic") == pipeline.retry_topic
    topic, partition, offset = _note(DEAD_HEADERS[2]), _note(DEAD_HEADERS[3]).try_cast("int"), _long(DEAD_HEADERS[4])
    letter = f.split(_note(DEAD_LETTER), ":")
    letter_offset = f.get(letter, 1).try_cast("bigint")
    is_earlier = letter_offset < f.coalesce(_looked_up(before, f.get(letter, 0)), f.lit(0))
    is_read_anyway = offset >= f.coalesce(_looked_up(_flat(starts), f.concat_ws("/", topic, partition)), f.lit(0))
    mine = topic.rlike(whole(source.pattern)) if source.pattern else topic.isin(list(source.topics))
    # For other sources that read the topic, the original row was valid. Dead-letter records of earlier versions name no
    # source.
    reader = _note(DEAD_SOURCE)
    mine &= f.coalesce(reader == source.name, f.lit(True))
    wanted = mine & (_note(DEAD_HEADERS[1]) == pipeline.name) & ~(is_earlier & is_read_anyway)
    notes = f.when(reader.isNull(), len(_AT) - 1).otherwise(len(_AT))
    own = f.slice("headers", f.lit(1), f.greatest(f.size("headers") - notes, f.lit(0)))
    chosen = raw.where(~is_retried | f.coalesce(wanted, f.lit(False)))

    def first(name: str, of_letter: "Column") -> "Column":
        return f.when(is_retried, of_letter).otherwise(f.col(name)).alias(name)

    replaced = {"topic": topic, "partition": partition, "offset": offset, "headers": own}
    return chosen.select(*(first(name, replaced[name]) if name in replaced else f.col(name) for name in raw.columns))


def _note(name: str) -> "Column":
    """Returns the value of a header after the record's own headers; null if it is missing or has another name."""
    from pyspark.sql import functions as f

    header = f.try_element_at("headers", f.lit(-_AT[name]))
    return f.when(header["key"] == name, header["value"].cast("string"))


def _long(name: str) -> "Column":
    return _note(name).try_cast("bigint")


def _looked_up(numbers: Mapping[str, Any], key: "Column") -> "Column":
    from pyspark.sql import functions as f

    if not numbers:
        return f.lit(None).cast("bigint")
    pairs = [one for name, number in numbers.items() for one in (f.lit(name), f.lit(number).cast("bigint"))]
    return f.try_element_at(f.create_map(*pairs), key)


def _flat(starts: Json) -> dict[str, int]:
    return {
        f"{topic}/{partition}": offset
        for topic, partitions in starts.items()
        for partition, offset in partitions.items()
    }
