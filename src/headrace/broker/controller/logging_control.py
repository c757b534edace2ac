"""The log levels of this process in the words of Kafka's tools: read and set, nothing decided, nothing kept."""

import logging
from collections.abc import Mapping

from headrace.core.controller.config_control import LEVELS, ROOT_LOGGER, level_name

_OURS = "headrace"


def log_levels() -> dict[str, str]:
    """Each of our loggers, and the root, with the level that holds for it."""
    names = {_OURS, *(name for name in logging.root.manager.loggerDict if name.startswith(f"{_OURS}."))}
    levels = {ROOT_LOGGER: level_name(logging.root.getEffectiveLevel())}
    return levels | {name: level_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def set_log_levels(levels: Mapping[str, str | None]) -> None:
    """None gives a logger back to its parent's level."""
    for name, level in levels.items():
        logger = logging.root if name == ROOT_LOGGER else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])
