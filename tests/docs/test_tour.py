"""What `make run` shows: the tour ends by itself, and the node stops cleanly when asked."""

import signal
import subprocess
import sys
from pathlib import Path

TOUR = [sys.executable, str(Path(__file__).resolve().parents[2] / "scripts" / "tour.py"), "--listen", "localhost:0"]
TOUR += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
TIMEOUT_S = 60
CLEAN_STOP = ".kafka_cleanshutdown"


def test_once_shows_a_produced_record_coming_back_and_stops_cleanly(tmp_path: Path) -> None:
    tour = subprocess.run(
        [*TOUR, "--data-dir", str(tmp_path), "--once"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )

    assert tour.returncode == 0, tour.stderr
    assert "wrote the first program" in tour.stdout
    assert str(tmp_path) in tour.stdout
    assert (tmp_path / CLEAN_STOP).exists()


def test_a_second_tour_finds_the_data_of_the_first(tmp_path: Path) -> None:
    command = [*TOUR, "--data-dir", str(tmp_path), "--once"]
    subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)

    second = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)

    assert "was here already" in second.stdout


def test_ctrl_c_after_the_tour_stops_the_node_cleanly(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*TOUR, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as tour:
        assert tour.stdout is not None
        for line in tour.stdout:
            if "Ctrl-C" in line:
                break
        tour.send_signal(signal.SIGINT)

        assert tour.wait(TIMEOUT_S) == 0
    assert (tmp_path / CLEAN_STOP).exists()
