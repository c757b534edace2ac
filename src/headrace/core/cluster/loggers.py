"""Log levels of a running broker: which changes are allowed. They last as long as the process; no fact is kept.

Decides with names and levels as words, as Kafka's tools write them; never touches a logger.
"""

from collections.abc import Collection, Iterable, Mapping

from headrace.core.cluster.alter_configs import Alteration, Operation
from headrace.core.cluster.values import ConfigResource
from headrace.model.configs import nearest
from headrace.model.errors import InvalidConfig, RequestError

ROOT_LOGGER = "root"
# Kafka's words and the numbers of Python's logging; known keys: no TRACE, which is more than DEBUG.
LEVELS: Mapping[str, int] = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}


def altered_levels(
    resource: ConfigResource, alterations: Iterable[Alteration], known: Collection[str], node_id: int
) -> dict[str, str | None]:
    """The new level of each named logger; None: as its parent. RequestError if one change is not allowed."""
    if resource.name != str(node_id):
        raise RequestError(
            f"log levels belong to one broker: send the request to broker {node_id} about {node_id}, not"
            f" {resource.name!r}"
        )
    levels: dict[str, str | None] = {}
    for alteration in alterations:
        if alteration.name in levels:
            raise RequestError(f"the logger {alteration.name} may be changed only once in a request")
        _check_known(alteration.name, known)
        levels[alteration.name] = _level(alteration)
    return levels


def level_name(number: int) -> str:
    """The word for a number: of the levels that let less through than it asks, the nearest."""
    return next((word for word, least in LEVELS.items() if number >= least), "TRACE")


def _level(alteration: Alteration) -> str | None:
    name, operation, value = alteration
    if operation == Operation.DELETE:
        if name == ROOT_LOGGER:
            raise RequestError("the root logger always has a level; set another one")
        return None
    if operation != Operation.SET:
        raise RequestError(f"a log level can be set or deleted; {name} is no list")
    if value not in LEVELS:
        raise InvalidConfig(f"{value!r} is no level for {name}; use one of {', '.join(LEVELS)}")
    return value


def _check_known(name: str, known: Collection[str]) -> None:
    if name not in known:
        close = nearest(name, known)
        hint = f"; did you mean {close}?" if close is not None else ""
        raise InvalidConfig(f"there is no logger {name}{hint}")
