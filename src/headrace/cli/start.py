"""`headrace start`: maps flags, environment and file to settings, and runs the node (`app/node.py`).

Uses argparse and lazy imports, because importing typer would slow down every start.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from headrace.cli.common.exit_codes import EXIT_CODES_HELP, FAILURE, USAGE
from headrace.config.loader import SettingsError, load_settings
from headrace.config.settings import Settings, split_address
from headrace.model.errors import HeadraceError, InvalidConfig

EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 (used only if the user omits the host)
HTTP_KEYS, GRPC_KEYS = ("host", "port"), ("grpc.host", "grpc.port")

_EXAMPLES = f"""\
examples:
  headrace start                                  a broker on localhost:9092, REST on 8080, gRPC on 9090
  headrace start --memory                         memory mode: records are lost when the broker stops
  headrace start --listen 0.0.0.0:9092 --data-dir /var/lib/headrace
  headrace start --http 0.0.0.0:8080              accept REST requests from other hosts
  headrace start --no-gateway                     the Kafka protocol only
  headrace start --no-gateway --metrics 127.0.0.1:9404
  headrace start --config headrace.yaml --set num.partitions=8
  HEADRACE_NUM_PARTITIONS=8 headrace start        every key can be an environment variable

Flags override the environment, which overrides the file. All keys: headrace config docs
Effective configuration: headrace config show

{EXIT_CODES_HELP}
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="headrace start",
        description="Start a broker with a REST and a gRPC process in the foreground. Ctrl-C or SIGTERM stops them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("-c", "--config", metavar="FILE", help="YAML file with settings (or HEADRACE_CONFIG)")
    made.add_argument(
        "-l",
        "--listen",
        metavar="HOST:PORT",
        action="append",
        help="address for Kafka clients; port 0 is any free one (default localhost:9092)",
    )
    made.add_argument("-d", "--data-dir", metavar="DIR", help="directory for partitions (default ./data)")
    made.add_argument("--memory", action="store_true", help="store all records in memory only")
    made.add_argument("--grpc", metavar="HOST:PORT", help="address for gRPC (default 127.0.0.1:9090)")
    made.add_argument("--http", metavar="HOST:PORT", help="address for REST (default 127.0.0.1:8080)")
    made.add_argument("--port", metavar="PORT", help="only the port of --http, like the key `port`")
    made.add_argument(
        "--metrics", metavar="HOST:PORT", help="address where the broker serves /metrics (default: on --http only)"
    )
    made.add_argument("--no-gateway", action="store_true", help="serve the Kafka protocol only: no REST, no gRPC")
    made.add_argument(
        "-s", "--set", metavar="KEY=VALUE", action="append", default=[], help="any setting; may be repeated"
    )
    return made


def flags(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yields (key, value, text of the flag); a short form yields the keys that it stands for."""
    yield from set_flags(arguments.set)
    if arguments.listen:
        addresses = [item if "://" in item else f"PLAINTEXT://{item}" for item in arguments.listen]
        yield "listeners", ",".join(addresses), f"--listen {' '.join(arguments.listen)}: "
    if arguments.data_dir is not None:
        yield "log.dirs", arguments.data_dir, f"--data-dir {arguments.data_dir}: "
    if arguments.memory:
        yield "storage", "memory", "--memory: "
    if arguments.http is not None:
        yield from address_flags("--http", arguments.http, HTTP_KEYS)
    if arguments.port is not None:
        yield "port", arguments.port, f"--port {arguments.port}: "
    if arguments.grpc is not None:
        yield from address_flags("--grpc", arguments.grpc, GRPC_KEYS)
    if arguments.metrics is not None:
        yield "metrics_addr", arguments.metrics, f"--metrics {arguments.metrics}: "
    if arguments.no_gateway:
        yield "gateway.enabled", "false", "--no-gateway: "


def set_flags(pairs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SettingsError([f"--set {pair}: not KEY=VALUE, e.g. --set num.partitions=8"])
        yield key.strip(), value.strip(), f"--set {pair}: "


def address_flags(flag: str, address: str, keys: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields the host and port keys of `--http HOST:PORT` or `--grpc HOST:PORT`."""
    try:
        host, port = split_address(address)
    except InvalidConfig as error:
        raise SettingsError([f"{flag} {address}: {error}"]) from None
    host_key, port_key = keys
    yield host_key, host or EVERY_INTERFACE, f"{flag} {address}: "
    yield port_key, str(port), f"{flag} {address}: "


def settings_of(words: Sequence[str]) -> Settings:
    """Returns the settings of a `start` command line; raises SettingsError with all problems."""
    arguments = parser().parse_args(words)
    loaded = load_settings(arguments.config, os.environ, flags(arguments))
    for remark in loaded.remarks():
        print(f"headrace: {remark}", file=sys.stderr)
    return loaded.settings


def start(words: Sequence[str]) -> int:
    try:
        settings = settings_of(words)
    except SettingsError as refused:
        _complain(refused.problems)
        return USAGE
    from headrace.app.node import run

    try:
        return run(settings)
    except HeadraceError as error:
        _complain([str(error)])
        return FAILURE
    except KeyboardInterrupt:
        return FAILURE


def _complain(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"headrace: {problem}", file=sys.stderr)
    print("headrace: not started; `headrace start --help` shows all options", file=sys.stderr)
