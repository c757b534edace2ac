"""Which version of a lake table a micro-batch reads, written down beside the checkpoint.

    checkpoint/tables/<hash of the table's path>/<batch>.<n>      {"run", "version"}

The first task of a batch that needs the table takes the newest version, and the others find it written down: a file is
made by one task and never changed. A batch that a later run of the query repeats takes the version it had, or the
newest as entry n + 1 if a vacuum has removed that one. Within a run a version that disappears fails the batch: a part
of its rows may have been read already.
"""

import json
import logging
import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from headrace.model.errors import HeadraceError
from headrace.spark.lake.reading import LakeVersion, all_there, open_version

log = logging.getLogger(__name__)

PINS = "tables"
# Spark repeats the last batch alone; older entries show an operator what earlier batches read.
BATCHES_KEPT = 100


class Pin(NamedTuple):
    run: str
    version: str


def pinned(place: str, checkpoint: Path, batch: int, run: str) -> LakeVersion:
    directory = checkpoint / PINS / sha256(place.encode()).hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        number, known = _newest(directory, batch)
        if known is not None and known.run == run:
            return open_version(place, known.version)
        version = (_still_there(place, known.version) if known is not None else None) or open_version(place)
        if _written(directory / f"{batch}.{number + 1}", Pin(run, version.version)):
            _forget_old(directory, batch)
            return version


def _newest(directory: Path, batch: int) -> tuple[int, Pin | None]:
    numbers = [int(file.suffix[1:]) for file in directory.glob(f"{batch}.*")]
    if not numbers:
        return -1, None
    return max(numbers), Pin(**json.loads((directory / f"{batch}.{max(numbers)}").read_text(encoding="utf-8")))


def _written(file: Path, pin: Pin) -> bool:
    """False: another task was faster. A link appears with its content."""
    unfinished = file.parent / f"unfinished-{uuid4().hex}"
    unfinished.write_text(json.dumps(pin._asdict()), encoding="utf-8")
    try:
        os.link(unfinished, file)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    return True


def _still_there(place: str, version: str) -> LakeVersion | None:
    try:
        found = open_version(place, version)
        is_there = all_there(found.parts())
    except Exception as error:  # delta-rs and PyIceberg have many ways to say that a version is not there
        if isinstance(error, HeadraceError) and error.retriable:
            raise
        log.warning("%s has no version %s any more: %s", place, version, error)
        return None
    return found if is_there else None


def _forget_old(directory: Path, batch: int) -> None:
    for file in directory.glob("*.*"):
        if file.stem.isdecimal() and int(file.stem) < batch - BATCHES_KEPT:
            file.unlink(missing_ok=True)
