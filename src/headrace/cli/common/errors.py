"""Error reporting of commands: a line with the failure, a line with the remedy, and an exit code.

Every command runs its work inside `failures_told`, which maps errors of brokers, clients and the operating system to
messages and exit codes.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from headrace.cli.common.exit_codes import FAILURE, NOT_FOUND, UNREACHABLE, USAGE
from headrace.client.core.errors import KafkaApiError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.model.errors import ErrorCode, HeadraceError, InvalidConfig

_NOT_FOUND_CODES = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)
_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`headrace topics list` lists the topics",
    ErrorCode.TOPIC_ALREADY_EXISTS: "pass --if-not-exists to ignore existing topics",
    ErrorCode.INVALID_CONFIG: "`headrace config docs` lists all keys with their values",
    ErrorCode.INVALID_REPLICATION_FACTOR: "lower --replication-factor to the number of brokers, or add brokers",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic, or send smaller records",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`headrace topics describe TOPIC` shows the available offsets",
    ErrorCode.KAFKA_STORAGE_ERROR: "see the broker's log and run `headrace doctor` on its host",
}


def fail(what: str, hint: str | None = None, code: int = FAILURE) -> NoReturn:
    """Prints the failure and the remedy on stderr, and exits with `code`."""
    print(f"error: {what}", file=sys.stderr)
    if hint:
        print(f"  try: {hint}", file=sys.stderr)
    raise typer.Exit(code)


def ask_before_deleting(question: str, *, yes: bool) -> None:
    """Returns if the user confirms. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail_usage("confirmation required to delete", "pass --yes if there is no terminal")
    typer.confirm(question, abort=True)


def fail_not_found(what: str, hint: str | None = None) -> NoReturn:
    fail(what, hint, NOT_FOUND)


def fail_usage(what: str, hint: str | None = None) -> NoReturn:
    fail(what, hint, USAGE)


@contextmanager
def failures_told(bootstrap: str | None = None) -> Iterator[None]:
    """Maps exceptions of the block to a message and an exit code; re-raises those that are bugs."""
    try:
        yield
    except BrokerUnreachable as error:
        _fail_unreachable(str(error))
    except InvalidConfig as error:
        fail_usage(str(error))
    except FileNotFoundError as error:
        fail_not_found(f"{error.filename or error}: no such file or directory")
    except HeadraceError as error:
        fail(str(error))
    except KafkaApiError as error:
        fail_kafka(error.code, str(error), bootstrap)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise  # the reader of a pipe, e.g. `| head`, has closed it: not an error
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{error.strerror or error}")
    except Exception as error:
        _fail_from_client(error, bootstrap)


def _fail_unreachable(what: str) -> NoReturn:
    fail(
        what,
        "start a broker with `headrace start`, or pass another address with --bootstrap HOST:PORT",
        UNREACHABLE,
    )


def _fail_from_client(error: Exception, bootstrap: str | None) -> NoReturn:
    """Reports a KafkaException. Any other exception is a bug and is re-raised, for `run` to report."""
    if not type(error).__module__.startswith(("confluent_kafka", "cimpl")):
        raise error
    from confluent_kafka import KafkaError

    kafka_error = error.args[0] if error.args else None
    if not isinstance(kafka_error, KafkaError):
        fail(str(error))
    fail_kafka(kafka_error.code(), kafka_error.str(), bootstrap)


def fail_kafka(code: int, message: str, bootstrap: str | None = None) -> NoReturn:
    """Exits with the error of the broker or of librdkafka."""
    from confluent_kafka import KafkaError

    if code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        _fail_unreachable(f"no broker responds at {bootstrap or 'the bootstrap address'}")
    if code in (KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
        fail(
            f"the broker did not respond in time: {message}",
            "see the broker's log, or raise --timeout",
            UNREACHABLE,
        )
    if code in (KafkaError._INVALID_ARG, KafkaError._UNKNOWN_PARTITION):
        fail(message, code=USAGE if code == KafkaError._INVALID_ARG else NOT_FOUND)
    known = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
    not_found = code in _NOT_FOUND_CODES or code == KafkaError._UNKNOWN_TOPIC
    fail(message, _HINTS.get(known), NOT_FOUND if not_found else FAILURE)


@contextmanager
def extras_needed(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{what} need {error.name}, which is not installed", "pip install 'headrace[spark,lake]'")
