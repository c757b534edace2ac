"""Reads and sets the log levels of this process, in the names of Kafka's tools."""

import logging
from collections.abc import Mapping

from headrace.core.controller.config_control import LEVELS, ROOT_LOGGER, level_name

_OURS = "headrace"


def log_levels() -> dict[str, str]:
    """Returns the effective level of each headrace logger and of the root logger."""
    names = {_OURS, *(name for name in logging.root.manager.loggerDict if name.startswith(f"{_OURS}."))}
    levels = {ROOT_LOGGER: level_name(logging.root.getEffectiveLevel())}
    return levels | {name: level_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def set_log_levels(levels: Mapping[str, str | None]) -> None:
    """Sets levels; None makes a logger inherit its parent's level."""
    for name, level in levels.items():
        logger = logging.root if name == ROOT_LOGGER else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
