"""How a pipeline reaches its cluster: who its sources say they are, it is in everything that it does there."""

from collections.abc import Mapping

from headrace.client.core.config import SecurityConfig, security_from
from headrace.client.sync.client import ClientConfig
from headrace.pipeline.definition import Pipeline

_PREFIXES = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_BOOTSTRAP = "kafka.bootstrap.servers"


def security_options(pipeline: Pipeline) -> dict[str, str]:
    """Of format("headrace"): those of the first source that has some. One that names another cluster is not asked."""
    places = [source.options for source in pipeline.streams] + [pipeline.sink.options]
    for options in places:
        lowered = {name.lower(): value for name, value in options.items()}
        found = {name: value for name, value in lowered.items() if name.startswith(_PREFIXES)}
        if found and _BOOTSTRAP not in lowered:
            return found
    return {}


def security_of(options: Mapping[str, str]) -> SecurityConfig:
    """Of options as `security_options` gives them."""
    return security_from({name.removeprefix("kafka."): value for name, value in options.items()})


def client_of(pipeline: Pipeline, bootstrap: str, *, client_id: str, patience_s: float) -> ClientConfig:
    """Settings for whatever the pipeline asks its cluster beside its queries."""
    security = security_of(security_options(pipeline))
    return ClientConfig(bootstrap=bootstrap, security=security, client_id=client_id, patience_s=patience_s)
