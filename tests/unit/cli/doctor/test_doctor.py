"""The doctor's single checks: what they find, and that each problem comes with advice."""

import json
import resource
import shutil
import socket
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.doctor import checks
from headrace.cli.doctor.commands import examine
from headrace.config.settings import ClusterSettings, EtcdSettings, Listener, Member, Settings
from headrace.storage.directory.checkpoint_files import MetaProperties, mark_clean_shutdown, write_meta_properties
from headrace.storage.io.file_system import OsFileSystem


@pytest.fixture
def taken_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_healthy_machine_has_no_problems(tmp_path):
    settings = Settings(data_dir=str(tmp_path), listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),))
    findings = list(examine(settings))
    assert [finding for finding in findings if finding.status == "problem"] == []
    expected = {"Python", "kernel", "open files", "disk sync", "io_uring", "disk space", "data files"}
    assert expected <= {one.name for one in findings}


def test_memory_mode_asks_nothing_of_the_disk(tmp_path):
    settings = Settings(storage="memory", data_dir="/proc/nowhere", listeners=(Listener("A", "127.0.0.1", 0),))
    assert not {finding.name for finding in examine(settings)} & {"data directory", "disk sync", "file system"}


def test_a_port_that_someone_holds_is_a_problem(taken_port):
    finding = checks.port(Listener("PLAINTEXT", "127.0.0.1", taken_port))
    assert finding.status == "problem"
    assert "--listen" in finding.advice


def test_a_host_that_is_not_ours_is_a_problem():
    assert checks.port(Listener("PLAINTEXT", "host.invalid", 9092)).status == "problem"


def test_a_free_port_is_fine():
    assert checks.port(Listener("PLAINTEXT", "127.0.0.1", 0)).status == "ok"


def test_a_data_directory_under_a_file_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("")
    finding = checks.writable(tmp_path / "file" / "data")
    assert finding.status == "problem"
    assert finding.advice


def test_a_data_directory_that_is_not_there_yet_is_fine(tmp_path):
    finding = checks.writable(tmp_path / "a" / "b")
    assert (finding.status, finding.found) == ("ok", f"{tmp_path}/a/b (new)")
    assert not (tmp_path / "a").exists(), "looking creates nothing"


@pytest.mark.parametrize(("free", "status"), [(10, "problem"), (200 * 2**20, "warning"), (2**40, "ok")])
def test_free_space_is_measured_against_the_reserve(tmp_path, monkeypatch, free, status):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**41, 0, free))
    assert checks.free_space(tmp_path).status == status


@pytest.mark.parametrize(
    ("soft", "hard", "status"), [(256, 4096, "problem"), (4096, 4096, "warning"), (2**20,) * 2 + ("ok",)]
)
def test_the_limit_of_open_files_is_judged(monkeypatch, soft, hard, status):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    finding = checks.open_files()
    assert finding.status == status
    assert bool(finding.advice) == (status != "ok")


def test_syncing_leaves_nothing_behind(tmp_path):
    finding = checks.sync_latency(tmp_path)
    assert "p99" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_told(tmp_path, monkeypatch):
    moments = iter(range(10_000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    assert checks.sync_latency(tmp_path).status == "warning"


def test_missing_bytecode_is_told(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert checks.bytecode_cache().status == "warning"
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert checks.bytecode_cache().status == "ok"


def test_the_file_system_of_proc_is_known():
    assert checks.file_system(Path("/proc")).found == "proc"


def test_files_of_another_node_are_a_problem(tmp_path):
    from uuid import UUID

    write_meta_properties(OsFileSystem(), str(tmp_path), MetaProperties("cluster", 7, UUID(int=5)))
    (finding,) = checks.data_directory(tmp_path, Settings(node_id=1))
    assert finding.status == "problem"
    assert "belong to node 7" in finding.found


def test_a_clean_stop_is_recognised(tmp_path):
    from uuid import UUID

    write_meta_properties(OsFileSystem(), str(tmp_path), MetaProperties("cluster", 1, UUID(int=5)))
    (running,) = checks.data_directory(tmp_path, Settings(node_id=1))
    mark_clean_shutdown(OsFileSystem(), str(tmp_path))
    (stopped,) = checks.data_directory(tmp_path, Settings(node_id=1))
    assert "not stopped cleanly" in running.found
    assert "stopped cleanly" in stopped.found


def test_a_damaged_checkpoint_is_a_problem(tmp_path):
    (tmp_path / "recovery-point-offset-checkpoint").write_text("nonsense\n1\n2\n")
    (finding,) = checks.data_directory(tmp_path, Settings())
    assert finding.status == "problem"
    assert "back up the directory" in finding.advice


def test_the_command_ends_with_one_on_problems_and_says_what_to_do(tmp_path, taken_port):
    words = ["doctor", "--data-dir", str(tmp_path), "--set", f"listeners=PLAINTEXT://127.0.0.1:{taken_port}"]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 1
    problems = [one for one in json.loads(result.stdout) if one["status"] == "problem"]
    assert [one["name"] for one in problems] == [f"port {taken_port}"]
    assert "PROBLEM" in CliRunner().invoke(app, words).stdout


def test_a_node_that_would_run_etcd_is_told_whether_it_can() -> None:
    members = (Member(node_id=1, api_addr="a:1", rpc_addr="a:2"),)
    for program, status in (("etcd", "ok"), ("etcd-that-is-not-there", "problem"), ("true", "problem")):
        node = Settings(
            listeners=(),
            storage="memory",
            cluster=ClusterSettings(initial_members=members),
            etcd=EtcdSettings(program=program),
        )
        assert {finding.name: finding.status for finding in examine(node)}["etcd"] == status
    alone = Settings(listeners=(), storage="memory")
    assert "etcd" not in {finding.name for finding in examine(alone)}
