"""Client configuration of a pipeline's own requests: uses the credentials of its sources."""

from collections.abc import Mapping

from headrace.client.core.config import SecurityConfig, security_from
from headrace.client.sync.client import ClientConfig
from headrace.pipeline.definition import Pipeline

_PREFIXES = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_BOOTSTRAP = "kafka.bootstrap.servers"


def security_options(pipeline: Pipeline) -> dict[str, str]:
    """Returns the security options of format("headrace") of the first source, or else the sink, that has any. Those
    with a bootstrap server of their own are skipped: they belong to another cluster.
    """
    places = [source.options for source in pipeline.streams] + [pipeline.sink.options]
    for options in places:
        lowered = {name.lower(): value for name, value in options.items()}
        found = {name: value for name, value in lowered.items() if name.startswith(_PREFIXES)}
        if found and _BOOTSTRAP not in lowered:
            return found
    return {}


def security_of(options: Mapping[str, str]) -> SecurityConfig:
    """Converts the result of `security_options`."""
    return security_from({name.removeprefix("kafka."): value for name, value in options.items()})


def client_of(pipeline: Pipeline, bootstrap: str, *, client_id: str, patience_s: float) -> ClientConfig:
    """Returns the configuration for requests of the pipeline besides its queries."""
    security = security_of(security_options(pipeline))
    return ClientConfig(bootstrap=bootstrap, security=security, client_id=client_id, patience_s=patience_s)
