"""Reports the progress of a pipeline after every batch, to its state directory and to the progress topic.

A stalled pipeline has no batches. The stall is reported once, to the topic only: the state directory shows it by the
time of the last progress.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.client.sync.client import ClientConfig
from headrace.pipeline.progress import STALLED, Progress, is_stalled, progress_of
from headrace.pipeline.state import PipelineState

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

PROGRESS_TOPIC = "__headrace_pipelines"
# The length of a plot in a terminal: two minutes at one batch per second.
RECENT_MAX = 120
# Time for the last report to be acknowledged; well within the supervisor's timeout for a worker that is stopping.
LAST_WORDS_S = 30.0


class ProgressReporter:
    def __init__(
        self, state: PipelineState, client: ClientConfig, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    ) -> None:
        self._state, self._client, self._now_ms = state, client, now_ms
        self._told: dict[str, str] = {}  # run of a query → timestamp of its last reported progress
        self._producer: Producer | None = None
        known = state.read("progress")
        self._newest: Progress | None = Progress.from_json(known) if known else None
        self._recent: list[dict[str, Any]] = state.read("recent") or []
        self._run: tuple[int, int] | None = None  # start of the run, and the time without progress that is a stall
        self._has_stalled = self._is_noted = self._has_failed = False

    def begin(self, stalled_after_ms: int) -> None:
        """Starts the measurement of stalls."""
        self._run, self._has_stalled, self._is_noted = (self._now_ms(), stalled_after_ms), False, False
        self._without_failing(self._note_start)

    def _note_start(self) -> None:
        if self._run is not None and not self._is_noted:
            started_ms, stalled_after_ms = self._run
            self._state.write("run", {"started_ms": started_ms, "stalled_after_ms": stalled_after_ms})
            self._is_noted = True

    def tell(self, queries: Sequence["StreamingQuery"]) -> None:
        """Reports new progress. The first query is the pipeline's; a second one counts only dead-letter records."""
        self._without_failing(lambda: self._report(queries))

    def _report(self, queries: Sequence["StreamingQuery"]) -> None:
        self._tell(queries)
        self._note_start()

    def _without_failing(self, report: Callable[[], None]) -> None:
        """Runs `report` and logs a failure instead of raising it, because reports must not stop a pipeline. Repeated
        failures are logged once.
        """
        try:
            report()
        except Exception as error:
            if not self._has_failed:
                log.warning(
                    "Cannot report the progress of %s; the pipeline continues", self._state.name, exc_info=error
                )
            self._has_failed = True
        else:
            self._has_failed = False

    def _tell(self, queries: Sequence["StreamingQuery"]) -> None:
        main, *beside = queries
        letters = sum(progress_of("", one, 0).dead_letters for query in beside for one in self._news(query))
        for one in self._news(main):
            progress = progress_of(self._state.name, one, self._now_ms())
            self._publish(replace(progress, dead_letters=progress.dead_letters + letters).after(self._newest))
            letters = 0
        if letters and self._newest is not None:
            total = self._newest.dead_letters_total + letters
            self._publish(replace(self._newest, dead_letters=letters, dead_letters_total=total))
        self._tell_of_stall()

    def _tell_of_stall(self) -> None:
        if self._run is None or self._has_stalled:
            return
        started_ms, stalled_after_ms = self._run
        if is_stalled(self._newest, started_ms, self._now_ms(), stalled_after_ms):
            self._has_stalled = True
            nothing = progress_of(self._state.name, {}, started_ms)
            self._send(replace(self._newest or nothing, state=STALLED))

    def _news(self, query: "StreamingQuery") -> list[dict[str, Any]]:
        """Returns progress that was not reported yet. Spark keeps the last hundred batches and repeats the last one
        while idle.
        """
        run = str(query.runId)
        news = [json.loads(one.json) for one in query.recentProgress]
        news = [one for one in news if one["timestamp"] > self._told.get(run, "")]
        if news:
            self._told[run] = news[-1]["timestamp"]
        return news

    def _publish(self, progress: Progress) -> None:
        self._newest, self._has_stalled = progress, False
        self._recent = [*self._recent, progress.to_json()][-RECENT_MAX:]
        self._send(progress)  # before the files, because the disk of the state directory may be full
        self._state.write("progress", progress.to_json())
        self._state.write("recent", self._recent)

    def _send(self, progress: Progress) -> None:
        if self._producer is None:
            from headrace.client.librdkafka import make_producer

            self._producer = make_producer(self._client.bootstrap, self._client.security.librdkafka())
        try:
            text = json.dumps(progress.to_json()).encode()
            self._producer.produce(PROGRESS_TOPIC, text, key=progress.pipeline.encode())
        except BufferError:
            log.warning(
                "the progress queue is full, so the broker receives no progress; the current progress is in %s",
                self._state.folder,
            )
        self._producer.poll(0)

    def close(self) -> None:
        self._without_failing(self._flush)

    def _flush(self) -> None:
        if self._producer is not None:
            self._producer.flush(LAST_WORDS_S)
