"""Rows of tables that are marked as deleted, as other writers do it and the formats' Python libraries cannot."""

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_ROARING_ARRAY_MAGIC = 1681511377
_ROARING_COOKIE = 12346  # 32 bits, no runs


def delete_in_delta(place: Path, file: str, rows: Sequence[int]) -> None:
    """Commits a deletion vector for one file, named as the log names it, as Delta's protocol writes it."""
    log = place / "_delta_log"
    version = DeltaTable(str(place)).version()
    adds = [one["add"] for line in sorted(log.glob("*.json")) for one in _actions(line) if "add" in one]
    add = next(one for one in adds if one["path"] == file)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(_roaring_array(rows)),
        "sizeInBytes": len(_roaring_array(rows)),
        "cardinality": len(rows),
    }
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    remove = {"path": file, "deletionTimestamp": 0, "dataChange": True, "partitionValues": add["partitionValues"]}
    actions = [{"protocol": protocol}, {"remove": remove}, {"add": add | {"deletionVector": vector}}]
    text = "\n".join(json.dumps(one) for one in actions)
    (log / f"{version + 1:020}.json").write_text(text + "\n")


def _actions(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _roaring_array(rows: Sequence[int]) -> bytes:
    """One 32-bit bitmap with one container of at most 4,096 rows."""
    header = struct.pack("<IIHHI", _ROARING_COOKIE, 1, 0, len(rows) - 1, 16)
    bitmap = header + b"".join(struct.pack("<H", row) for row in sorted(rows))
    whole = struct.pack("<IQI", _ROARING_ARRAY_MAGIC, 1, 0) + bitmap
    return whole + bytes(-len(whole) % 4)


def _z85(data: bytes) -> str:
    return base64.b85encode(data).decode().translate(str.maketrans(_B85, _Z85))


def delete_in_iceberg(table: Table, path: str, rows: Sequence[int], *, by_equality: bool = False) -> None:
    """Commits a delete file: of positions in `path`, or of equal ids."""
    place = f"{table.location()}/data/deletes-{len(table.snapshots())}.parquet".removeprefix("file://")
    if by_equality:
        pq.write_table(pa.table({"id": pa.array(rows, pa.int64())}), place)
    else:
        pq.write_table(pa.table({"file_path": [path] * len(rows), "pos": pa.array(rows, pa.int64())}), place)
    content = DataFileContent.EQUALITY_DELETES if by_equality else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{place}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=Path(place).stat().st_size,
        equality_ids=[1] if by_equality else None,
        spec_id=0,
    )
    with table.transaction() as transaction:
        append = transaction.update_snapshot().fast_append()
        append.__class__ = _DeleteFiles
        append.append_data_file(file)
        append.commit()


class _DeleteFiles(_FastAppendFiles):
    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self._io.new_output(f"{metadata.location}/metadata/deletes-{self.snapshot_id}.avro")
        with _DeleteManifest(metadata.spec(), metadata.schema(), output, self.snapshot_id, "null") as writer:
            for file in self._added_data_files:
                status = ManifestEntryStatus.ADDED
                writer.add(ManifestEntry.from_args(status=status, snapshot_id=self.snapshot_id, data_file=file))
        return [writer.to_manifest_file(), *self._existing_manifests()]


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES
