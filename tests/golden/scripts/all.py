"""Every script there is, imported in one order."""

from tests.golden.scripts import (
    away,
    cluster,
    configs,
    consumer_groups,
    denied,
    fetch,
    groups,
    offsets,
    partitions,
    produce,
    topics,
    transactions,
)
from tests.golden.scripts.common import SCRIPTS, ScriptFor

__all__ = [
    "SCRIPTS",
    "ScriptFor",
    "away",
    "cluster",
    "configs",
    "consumer_groups",
    "denied",
    "fetch",
    "groups",
    "offsets",
    "partitions",
    "produce",
    "topics",
    "transactions",
]
