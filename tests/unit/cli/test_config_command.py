"""`headrace config …`, and that the reference page says what the tables say."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.config import config_reference
from headrace.config.keys.node import ALIASES, NODE_CONFIGS
from headrace.config.values import BROKER_CONFIGS, TOPIC_CONFIGS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "config.md"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("HEADRACE_CONFIG", "HEADRACE_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


def run(*words):
    return CliRunner().invoke(app, words)


def test_show_names_value_and_source(tmp_path):
    file = tmp_path / "h.yaml"
    file.write_text("default_partitions: 8\n")
    result = run("config", "show", "--config", str(file), "--set", "node.id=3", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [
        {"key": "node.id", "value": "3", "source": "--set node.id=3"},
        {"key": "num.partitions", "value": "8", "source": f"{file} line 1"},
    ]


def test_show_all_lists_every_public_key_with_its_default():
    rows = {row["key"]: row for row in json.loads(run("config", "show", "--all", "--json").stdout)}
    public = {name for name, one in {**NODE_CONFIGS, **BROKER_CONFIGS}.items() if not one.internal}
    assert set(rows) == public
    assert rows["num.partitions"] == {"key": "num.partitions", "value": "4", "source": "default"}


def test_show_prints_a_table_for_people():
    result = run("config", "show", "--set", "num.partitions=8")
    assert "num.partitions" in result.stdout
    assert "--set num.partitions=8" in result.stdout


def test_check_tells_everything_that_is_wrong(tmp_path):
    file = tmp_path / "h.yaml"
    file.write_text("num.partitons: 8\nacks: perhaps\n")
    result = run("config", "check", "--config", str(file))
    assert result.exit_code == 2
    assert "line 1: unknown key num.partitons; did you mean num.partitions?" in result.stderr
    assert "line 2: Invalid value 'perhaps'" in result.stderr
    assert "2 problems" in result.stderr


def test_check_is_silent_on_stdout_when_all_is_well():
    result = run("config", "check", "--set", "num.partitions=8")
    assert (result.exit_code, result.stdout) == (0, "")


def test_the_reference_page_is_what_the_tables_say():
    assert REFERENCE.read_text() == config_reference(), "run: headrace config docs > docs/reference/config.md"


def test_the_reference_page_has_every_key_once():
    text = config_reference()
    for name, one in {**TOPIC_CONFIGS, **BROKER_CONFIGS, **NODE_CONFIGS}.items():
        assert (f"| `{name}` |" in text) != one.internal, name
    for name in ALIASES:
        assert f"| `{name}` |" in text, name


def test_the_example_on_the_reference_page_is_a_file_that_loads(tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(config_reference().split("```yaml\n")[1].split("```")[0])
    result = run("config", "check", "--config", str(file))
    assert result.exit_code == 0, result.stderr
    assert "valid: 6 settings" in result.stderr


def test_settings_without_effect_are_told():
    result = run("config", "check", "--set", "log.cleaner.threads=3", "--set", "num.partitions=2")
    assert result.exit_code == 0
    assert "--set log.cleaner.threads=3: log.cleaner.threads has no effect in this version" in result.stderr
    assert "num.partitions has no effect" not in result.stderr


def test_docs_prints_the_reference():
    assert run("config", "docs").stdout == config_reference()
