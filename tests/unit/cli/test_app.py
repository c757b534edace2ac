"""What holds for all commands: they teach, they are documented, and nothing ends in a traceback."""

from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli import app as app_module
from headrace.cli.app import app, run
from headrace.cli.common.exit_codes import NOT_FOUND, UNREACHABLE, USAGE
from headrace.cli.main import main

CLI_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
NOBODY = "127.0.0.1:1"  # port 1 is reserved; nothing of ours listens there


def commands(command=None, path=()):
    command = command or typer.main.get_command(app)
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


EVERY_COMMAND = dict(commands())


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_every_command_explains_itself_with_an_example_and_the_exit_codes(path):
    command = EVERY_COMMAND[path]
    assert command.help
    assert f"headrace {' '.join(path)}" in command.epilog
    assert "Exit codes:" in command.epilog


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_every_command_and_option_is_on_the_reference_page(path):
    page = CLI_PAGE.read_text()
    assert f"`headrace {' '.join(path)}" in page
    section = page.split(f"`headrace {' '.join(path)}", 1)[1].split("\n### ", 1)[0]
    shared = page.split("## Commands", 1)[0]
    for parameter in EVERY_COMMAND[path].params:
        for option in (name for name in parameter.opts if name.startswith("--")):
            assert f"`{option}" in section + shared, option


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_help_works_for_every_command(path):
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list"],
        ["topics", "create", "x"],
        ["topics", "describe", "x"],
        ["topics", "alter", "x", "--set", "a=b"],
        ["topics", "delete", "x", "--yes"],
        ["topics", "add-partitions", "x", "--more", "1"],
        ["topics", "delete-records", "x", "--before", "end", "--yes"],
        ["produce", "x", "v"],
        ["consume", "x"],
        ["configs", "list", "--topic", "x"],
        ["configs", "get", "k", "--broker", "1"],
        ["configs", "set", "k=v", "--all-brokers"],
        ["configs", "unset", "k", "--loggers", "1"],
        ["bench"],
    ],
    ids=" ".join,
)
def test_a_missing_broker_is_told_at_once_with_what_to_do(words, capfd):
    assert main([*words, "--bootstrap", NOBODY]) == UNREACHABLE
    error = capfd.readouterr().err
    assert f"no broker responds at {NOBODY} (Connection refused)" in error
    assert "headrace start" in error


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nope"], "No such command"),
        (["topics", "create"], "Missing argument"),
        (["topics", "create", "x", "--config", "novalue"], "is not KEY=VALUE"),
        (["topics", "create", "x", "--partitions", "0"], "--partitions"),
        (["topics", "alter", "x"], "--set or --unset is required"),
        (["topics", "delete", "x"], "pass --yes"),
        (["topics", "delete-records", "x", "--before", "5"], "pass --yes"),
        (["topics", "add-partitions", "x"], "specify either --total or --more"),
        (["topics", "add-partitions", "x", "--total", "3", "--more", "1"], "specify either --total or --more"),
        (["produce", "x", "--tombstone"], "--tombstone requires --key and no value"),
        (["produce", "x", "v", "--acks", "2"], "invalid --acks '2'"),
        (["produce", "x", "v", "--header", "h"], "write NAME=VALUE"),
        (["produce", "x", "v", "--timestamp", "soon"], "is not a time"),
        (["consume", "x", "--offset", "1", "--from-time", "5m"], "more than one start position"),
        (["consume", "x", "--json", "-v"], "more than one output format"),
        (["consume", "x", "--format", "{nope}"], "unknown field 'nope'"),
        (["configs", "list"], "no resource specified"),
        (["configs", "list", "--topic", "x", "--broker", "1"], "more than one resource"),
        (["topics", "list", "--bootstrap", "host:port:1"], "is not an address"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_wrong_usage_ends_with_two_and_says_what_is_right(words, told, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(words) == USAGE
    assert told in capfd.readouterr().err


def test_something_unforeseen_becomes_one_line(monkeypatch, capfd):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(app_module, "app", broken)
    monkeypatch.delenv(app_module.DEBUG_VARIABLE, raising=False)
    assert run(["topics", "list"]) == 1
    error = capfd.readouterr().err
    assert "unexpected ZeroDivisionError: by zero" in error
    assert "Traceback" not in error
    monkeypatch.setenv(app_module.DEBUG_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        run(["topics", "list"])


@pytest.mark.parametrize("words", [["version"], ["--version"], ["-V"]])
def test_the_version_is_told(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == f"headrace {__version__}\n"


def test_version_works_through_typer_too():
    assert CliRunner().invoke(app, ["version"]).stdout == f"headrace {__version__}\n"


def test_files_that_are_not_there_are_not_found(capfd):
    assert main(["log", "verify", "/no/such/dir"]) == NOT_FOUND
    assert "/no/such/dir: no such file or directory" in capfd.readouterr().err
