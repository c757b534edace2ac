"""`headrace log …`: dump, verify, ends. Read-only; the broker may run while `dump` and `verify` read its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.common.errors import fail, fail_not_found, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.common.options import Json
from headrace.cli.common.output import human_bytes, note, plural, print_json, print_json_line, print_table, progress
from headrace.cli.common.record_text import Incoming, as_json
from headrace.cli.common.time_arguments import show_time

app = typer.Typer(
    name="log",
    help="Print and verify segment files, headrace's or Kafka's. Read-only.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)
Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH", help="Segment files, partition directories or data directories."),
]


@app.command(epilog=examples("headrace log dump data/orders-0 --deep | less"))
def dump(
    paths: Paths,
    deep: Annotated[bool, typer.Option("--deep", help="Also print every record, decompressed.")] = False,
    as_json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the batches of segments, the entries of indexes, and the rows of producer snapshots.

    Read-only; works while a broker runs, and on Kafka's files.
    """
    with failures_told():
        for path in _files(paths):
            if not as_json_lines:
                print(f"== {path}")
            for row in _rows(path, deep=deep):
                if as_json_lines:
                    print_json_line({"file": str(path)} | row)
                else:
                    print(_line(row))


@app.command(epilog=examples("headrace log verify data/"))
def verify(
    paths: Paths,
    deep: Annotated[bool, typer.Option("--deep", help="Also decompress and parse every record.")] = False,
    as_json_report: Json = False,
) -> None:
    """Verify checksums, offsets, indexes, snapshots and leader epochs. Exit code 1 if a check fails."""
    from headrace.cli.log.verify import check_folder, check_segment

    with failures_told():
        logs = [path for path in _files(paths) if path.suffix == ".log"]
        sizes = sum(path.stat().st_size for path in logs)
        reports = []
        with progress("checking", sizes) as advance:
            for path in logs:
                reports.append(check_segment(path, deep=deep))
                advance(reports[-1].size)
        problems = [problem for report in reports for problem in report.problems]
        for folder in sorted({path.parent for path in logs}):
            problems += check_folder(folder, [report for report in reports if report.path.parent == folder])
    batches = sum(len(report.batches) for report in reports)
    records = sum(report.records for report in reports)
    if as_json_report:
        print_json(
            {
                "segments": len(reports),
                "bytes": sizes,
                "batches": batches,
                "records": records,
                "problems": [problem._asdict() for problem in problems],
            }
        )
    for problem in problems if not as_json_report else ():
        print(problem)
    note(
        f"{plural(len(reports), 'segment')}, {plural(batches, 'batch')}, "
        f"{plural(records, 'record')}, {human_bytes(sizes)}"
    )
    if problems:
        fail(
            f"{plural(len(problems), 'problem')}",
            "the next start truncates a torn write; for any other problem, back up the directory and restore it from a "
            "replica or a backup",
        )


@app.command(epilog=examples("headrace log ends data/", "headrace log ends node1.json node2.json node3.json"))
def ends(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Data directories of stopped brokers, or files with the output of --json."),
    ],
    as_json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the leader epoch and the log end offset of each replica, and mark replicas that are behind another one."""
    from headrace.cli.log.ends import compared, log_ends

    with failures_told():
        for path in paths:
            if not path.exists():
                fail_not_found(f"{path}: no such file or directory")
        rows = compared(end for path in paths for end in log_ends(path))
    if as_json_lines:
        for row in rows:
            print_json_line(row.end._asdict())
        return
    columns = ("partition", "behind", "node", "leader epoch", "log end offset")
    print_table(
        columns,
        [
            (f"{end.topic}-{end.partition}", "behind" if is_behind else "", end.node, *end.position)
            for end, is_behind in rows
        ],
        numbers=3,
    )


def _files(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            fail_not_found(f"{path}: no such file or directory")
        inside = sorted(path.rglob("*.log")) if path.is_dir() else [path]
        found += [one for one in inside if one.is_file() and (path.is_file() or one.stem.isdigit())]
    if not found:
        fail_not_found(
            f"no segment files under {', '.join(map(str, paths))}",
            "specify a data directory, a partition directory (orders-0) or a .log file",
        )
    return found


def _rows(path: Path, *, deep: bool) -> Iterator[dict[str, Any]]:
    match path.suffix:
        case ".log":
            yield from _batch_rows(path, deep=deep)
        case ".index" | ".timeindex":
            yield from _index_rows(path)
        case ".snapshot":
            from headrace.storage.producer.producer_snapshot_file import decode_snapshot

            yield from (row._asdict() for row in decode_snapshot(path.read_bytes()))
        case ".txnindex":
            from headrace.storage.io.file_system import OsFileSystem
            from headrace.storage.segment.transaction_index import TxnIndex

            yield from (entry._asdict() for entry in TxnIndex(OsFileSystem(), str(path)).entries())
        case _:
            fail(f"{path} is not a .log, .index, .timeindex, .txnindex or .snapshot file", code=2)


def _index_rows(path: Path) -> Iterator[dict[str, Any]]:
    from headrace.cli.log.verify import OFFSET_ENTRY, TIME_ENTRY, index_entries

    base_offset = int(path.stem)
    if path.suffix == ".index":
        for relative, position in index_entries(path, OFFSET_ENTRY)[0]:
            yield {"offset": base_offset + relative, "position": position}
    else:
        for timestamp, relative in index_entries(path, TIME_ENTRY)[0]:
            yield {"timestamp": timestamp, "offset": base_offset + relative}


def _batch_rows(path: Path, *, deep: bool) -> Iterator[dict[str, Any]]:
    from headrace.cli.log.verify import Problem, mapped, walk_segment
    from headrace.model.errors import RequestError
    from headrace.records.batch import batch_crc
    from headrace.records.compression import Codec
    from headrace.records.record import iter_records

    problems: list[Problem] = []
    with mapped(path) as data:
        for (position, header), batch in walk_segment(data, path, problems):
            yield {
                "position": position,
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "records": header.record_count,
                "bytes": header.total_bytes,
                "max_timestamp": header.max_timestamp,
                "codec": Codec(header.codec).name.lower() if header.codec <= 4 else f"unknown {header.codec}",
                "leader_epoch": header.leader_epoch,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "crc_ok": batch_crc(batch) == header.crc,
            }
            try:
                for record in iter_records(batch, header) if deep else ():
                    yield _record_row(path, record, control=header.is_control)
            except RequestError as error:
                yield {"error": f"records cannot be read: {error}"}
    yield from ({"error": str(problem)} for problem in problems)


def _record_row(path: Path, record: Any, *, control: bool) -> dict[str, Any]:
    from headrace.records.control import decode_marker

    if control:
        marker = decode_marker(record.key, record.value)
        kind = marker.type.name.lower() if marker is not None else "other"
        return {"offset": record.offset, "timestamp": record.timestamp, "marker": kind}
    topic, _, partition = path.parent.name.rpartition("-")
    number = int(partition) if partition.isdigit() else -1
    row = as_json(
        Incoming(topic, number, record.offset, record.timestamp, None, record.key, record.value, list(record.headers))
    )
    return {name: row[name] for name in ("offset", "timestamp", "key", "headers", "value")}


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"!! {row['error']}"
    shown = row | {name: show_time(row[name]) for name in ("max_timestamp", "timestamp") if name in row}
    words = "  ".join(f"{name}={value}" for name, value in shown.items())
    return words if "position" in row or "crc_ok" in row else f"   | {words}"
