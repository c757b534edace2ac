"""What `make run` shows: orders, a pipeline, an archive, a result; and everything stops cleanly when asked."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TOUR = [sys.executable, str(Path(__file__).resolve().parents[2] / "scripts" / "tour.py"), "--listen", "localhost:0"]
TOUR += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
# Half a minute where nothing else runs, and many on a machine full of tests.
TIMEOUT_S = 900
CLEAN_STOP = ".kafka_cleanshutdown"


@pytest.mark.timeout(TIMEOUT_S)
def test_once_shows_results_of_pipeline_and_archive_and_stops_cleanly(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    tour = subprocess.run(
        [*TOUR, "--data-dir", str(tmp_path / "data"), "--once"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert tour.returncode == 0, tour.stderr + tour.stdout
    rows = re.findall(r"^  (CH|GB|NL|US) +([\d,]+) +([\d,.]+)$", tour.stdout, re.MULTILINE)
    assert {country for country, _, _ in rows} == {"CH", "GB", "NL", "US"}
    assert re.search(r"^\d+ invalid orders were routed to the dead-letter topic", tour.stdout, re.MULTILINE)
    assert (tmp_path / "data" / CLEAN_STOP).exists()
    assert archived_rows(tmp_path / "data-lake" / "orders") > 0


def archived_rows(table: Path) -> int:
    from deltalake import DeltaTable
    from pyarrow import parquet as pq

    files = [file.removeprefix("file://") for file in DeltaTable(str(table)).file_uris()]
    archived = pq.read_table(files, columns=["partition", "offset"])
    places = list(zip(*(archived[name].to_pylist() for name in ("partition", "offset")), strict=True))
    assert len(set(places)) == len(places)
    return len(places)


@pytest.mark.timeout(TIMEOUT_S)
def test_ctrl_c_stops_everything_cleanly_even_while_it_starts(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*TOUR, "--data-dir", str(tmp_path / "data")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as tour:
        assert tour.stdout is not None
        for line in tour.stdout:
            if line.startswith("producing orders"):
                break
        family = psutil.Process(tour.pid).children(recursive=True)
        tour.send_signal(signal.SIGINT)
        assert tour.wait(TIMEOUT_S) == 0, tour.stderr.read() if tour.stderr else ""
    assert len(family) >= 3
    _, alive = psutil.wait_procs(family, 60)
    assert not alive
    assert (tmp_path / "data" / CLEAN_STOP).exists()
