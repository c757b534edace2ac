"""`headrace start` reads its flags without typer, tells what is wrong, and hands over checked settings."""

import os
import subprocess
import sys

import pytest
import typer.main

from headrace.cli import start as start_module
from headrace.cli.app import app
from headrace.cli.common.exit_codes import USAGE
from headrace.cli.main import main
from headrace.config.loader import SettingsError
from headrace.config.settings import Listener


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.setattr(os, "environ", {})


def settings(*words):
    return start_module.settings_of(words)


def test_flags_become_settings():
    made = settings("--listen", "127.0.0.1:0", "-d", "/var/x", "--memory", "-s", "num.partitions=2", "-s", "node.id=0")
    assert made.listeners == (Listener("PLAINTEXT", "127.0.0.1", 0),)
    assert (made.data_dir, made.storage, made.node_id) == ("/var/x", "memory", 0)
    assert made.config("num.partitions") == 2


def test_a_config_file_with_a_port_flag_is_used(tmp_path, capsys):
    file = tmp_path / "node.yaml"
    file.write_text("host: 0.0.0.0\nport: 8080\nmemtx_dir: var/memtx\nvinyl_dir: var/vinyl\n")
    gateway = settings("--config", str(file), "--port", "9090").gateway
    assert (gateway.host, gateway.port) == ("0.0.0.0", 9090)
    assert (gateway.port_moves, gateway.grpc_port_moves) == (False, True)
    remarks = capsys.readouterr().err
    for key in ("memtx_dir", "vinyl_dir"):
        assert f"{key} has no effect here: all data is in one directory; set storage_path" in remarks


def test_metrics_are_told_where_somebody_asks_for_them():
    assert settings("--metrics", "127.0.0.1:9404").telemetry.metrics_addr == "127.0.0.1:9404"
    assert settings().telemetry.metrics_addr == ""


def test_several_addresses_need_names_of_their_own():
    words = ("-l", "INTERNAL://[::1]:1", "-l", "localhost:2", "-s", "listener.security.protocol.map=INTERNAL:PLAINTEXT")
    with pytest.raises(SettingsError, match=r"PLAINTEXT is not in listener\.security"):
        settings(*words)
    made = settings(*words[:-1], "listener.security.protocol.map=INTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT")
    assert [listener.name for listener in made.listeners] == ["INTERNAL", "PLAINTEXT"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--set", "num.partitons=2"],
            "--set num.partitons=2: unknown key num.partitons; did you mean num.partitions?",
        ),
        (["--set", "num.partitions"], "--set num.partitions: not KEY=VALUE"),
        (["--listen", "nowhere"], "--listen nowhere: listeners: 'nowhere' is not an address"),
        (["--port", "many"], "--port many: Invalid value 'many' for configuration port"),
        (["--config", "/no/such.yaml"], "cannot read /no/such.yaml"),
    ],
)
def test_wrong_settings_end_with_usage_and_every_reason(words, told, capsys):
    assert main(["start", *words]) == USAGE
    error = capsys.readouterr().err
    assert told in error
    assert "not started" in error


def test_help_teaches_by_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["start", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "headrace start --memory" in text
    assert "Exit codes:" in text


def test_abbreviated_flags_are_not_guessed():
    with pytest.raises(SystemExit) as ended:
        settings("--mem")
    assert ended.value.code == USAGE


def test_completion_knows_the_flags_that_start_really_has():
    real = {name for action in start_module.parser()._actions for name in action.option_strings}
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    declared = command.commands["start"].params
    assert {name for parameter in declared for name in parameter.opts} | {"-h", "--help"} == real


HEAVY = ("typer", "rich", "yaml", "confluent_kafka", "kio", "pydantic", "click", "difflib", "logging")


def test_nothing_heavy_is_imported_on_the_way_to_the_node():
    program = (
        "import sys; from headrace.cli.start import settings_of; settings_of(['--memory', '--listen', '127.0.0.1:0']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={})
    assert found.stdout.strip() == "[]"
