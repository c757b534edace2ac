"""headrace as it is installed beside the bench: `headrace start` with its defaults, without REST."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.brokers import Broker, Policy

PROGRAM = Path(sys.executable).parent / "headrace"


class Headrace(Broker):
    kind = "headrace"
    policies: ClassVar[Mapping[Policy, Mapping[str, str]]] = {
        Policy.PAGE_CACHE: {"flush.policy": "replicated"},
        Policy.FSYNC: {},
    }
    node_policies: ClassVar[Mapping[Policy, Mapping[str, str]]] = {
        Policy.PAGE_CACHE: {"log.flush.policy": "replicated"},
        Policy.FSYNC: {},
    }

    def prepare(self) -> None:
        """Nothing: the first start makes what it needs, and that counts as part of starting."""

    def command(self) -> list[str]:
        settings = [part for key, value in self.settings.items() for part in ("--set", f"{key}={value}")]
        data = str(self.home / "data")
        # Broker beside broker: Kafka has no REST that would take memory and time.
        return [str(PROGRAM), "start", "--no-gateway", "--listen", self.bootstrap, "--data-dir", data, *settings]
