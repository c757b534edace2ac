"""Keeps the archives of a cluster: finds the topics that have one, and brings each up to its topic's end, again and
again. One topic's trouble does not hold up the others.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from headrace.client.blocking.cluster import Cluster, TopicView
from headrace.client.refusals import Refused
from headrace.model.errors import HeadraceError
from headrace.spark.archive.archiver import Archiver, Round
from headrace.spark.archive.publishing import GRACE_S
from headrace.spark.archive.settings import ArchiveSettings, archived_topics, readable_settings, topic_view
from headrace.spark.lake.upkeep import Upkeep

log = logging.getLogger(__name__)

# How often the topics' configs are asked for: an archive that was enabled just now begins within this time.
REFRESH_S = 10.0

Tell = Callable[[ArchiveSettings, Round], None]


class Runner:
    def __init__(
        self,
        cluster: Cluster,
        names: Sequence[str] = (),
        *,
        upkeep: Upkeep | None = None,
        grace_s: float = GRACE_S,
        tell: Tell = lambda settings, done: None,
    ) -> None:
        """`names`: these topics alone; all that have an archive without any."""
        self._cluster, self._names = cluster, names
        self._upkeep, self._grace_s = upkeep or Upkeep(), grace_s
        self._tell = tell
        self._archivers: dict[str, Archiver] = {}
        self._settings: list[ArchiveSettings] = []
        self._looked_at = float("-inf")

    def run(self, stop: threading.Event, interval_s: float) -> None:
        """Until asked to stop; a commit under way is finished."""
        while not stop.is_set():
            try:
                is_behind = self.visit_all(stop)
            except (OSError, Refused) as error:
                log.error("The cluster does not respond; retrying: %s", error)
                is_behind = False
            if not is_behind:
                stop.wait(interval_s)

    def visit_all(self, stop: threading.Event | None = None) -> bool:
        """One round for each topic; whether one of them has more to do at once."""
        self._refresh()
        is_behind = False
        for settings in self._settings:
            if stop is not None and stop.is_set():
                return False
            done = self._attempt(settings, self._visit)
            is_behind |= done is not None and done.is_behind
        return is_behind

    def try_to_catch_up(self, settings: ArchiveSettings) -> Round | None:
        """As `catch_up`, but None if there was trouble, which is logged."""
        return self._attempt(settings, self.catch_up)

    def _attempt(self, settings: ArchiveSettings, work: Callable[[ArchiveSettings], Round]) -> Round | None:
        """None if there was trouble. It is this topic's alone, so whatever it is, the next topic has its turn."""
        try:
            return work(settings)
        except (HeadraceError, Refused, OSError, ValueError) as error:
            log.error("%s is not archived: %s", settings.topic, error)
        except Exception:
            log.exception("%s is not archived", settings.topic)
        self._archivers.pop(settings.topic, None)
        return None

    def catch_up(self, settings: ArchiveSettings) -> Round:
        """Rounds until nothing is left of what is there; trouble is raised."""
        while (done := self._visit(settings)).is_behind:
            pass
        return done

    def _refresh(self) -> None:
        if time.monotonic() - self._looked_at < REFRESH_S:
            return
        if self._names:
            self._settings = readable_settings(self._cluster, self._names)
        else:
            self._settings = archived_topics(self._cluster)
        self._looked_at = time.monotonic()

    def _visit(self, settings: ArchiveSettings) -> Round:
        topic: TopicView = topic_view(self._cluster, settings.topic)
        if str(topic.topic_id) != settings.topic_id:
            self._looked_at = float("-inf")
            raise HeadraceError(f"the topic {settings.topic} was re-created; reading its archive configuration again")
        archiver = self._archivers.get(settings.topic)
        if archiver is None or not _is_same(archiver.settings, settings):
            archiver = self._archivers[settings.topic] = Archiver(self._cluster, settings, self._upkeep, self._grace_s)
        done = archiver.round(topic)
        self._tell(settings, done)
        return done


def _is_same(ours: ArchiveSettings, theirs: ArchiveSettings) -> bool:
    """`until` is what we write ourselves, and no reason to begin anew."""
    return ours._replace(until={}) == theirs._replace(until={})
