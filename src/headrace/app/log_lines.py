"""How log lines look: for people, or one JSON document a line for machines. Standard error, in every process.

    {"time":"2026-01-31T12:00:00.123Z","level":"warning","logger":"headrace.broker.server","message":"…","part":"broker"}

A line that somebody logs with `extra={"fields": {…}}` carries those fields as they are.
"""

import json
import logging
import sys
import time
import traceback

TEXT_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "part": self._part,
        }
        fields = getattr(record, "fields", None)
        if fields:
            line |= fields
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def write_log_lines(log_format: str, part: str) -> None:
    """To standard error, from the level INFO on. Does nothing where the program has said how it logs already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(part) if log_format == "json" else logging.Formatter(TEXT_LINE))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
