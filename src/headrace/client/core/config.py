"""TLS and SASL settings of a client connection, from Kafka's property names.

Unsupported values are rejected with a message that names the alternative. Holds passwords, which its repr omits.
"""

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.client.core.scram import ScramClient
from headrace.model.errors import InvalidConfig

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")

# One step of the SASL exchange: takes the broker's token and returns the next one; None when the exchange is complete.
Step = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Picklable, so that a Spark driver can send it to its tasks."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def librdkafka(self) -> dict[str, str]:
        """The same settings by the names of librdkafka."""
        if self.protocol == "PLAINTEXT":
            return {}
        names = {
            "security.protocol": self.protocol,
            "sasl.mechanisms": self.mechanism if self.uses_sasl else None,
            "sasl.username": self.username or None,
            "sasl.password": self.password or None,
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file or self.certificate_file,  # a PEM file may hold both
            "ssl.key.password": self.key_password,
            "ssl.endpoint.identification.algorithm": None if self.checks_hostname else "none",
        }
        return {name: value for name, value in names.items() if value is not None}

    def wrap(self, plain: socket.socket, host: str) -> socket.socket:
        if not self.uses_tls:
            return plain
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = self.checks_hostname
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
        return context.wrap_socket(plain, server_hostname=host)

    def exchange(self) -> tuple[bytes, Step]:
        """Returns the first SASL token and the step function for the following ones."""
        if self.mechanism == "PLAIN":
            return b"\0".join((b"", self.username.encode(), self.password.encode())), lambda _: None
        scram = ScramClient(self.mechanism, self.username, self.password)
        return scram.first(), scram.step


def security_from(properties: Mapping[str, str]) -> SecurityConfig:
    """Reads Kafka's consumer or producer properties, without Spark's prefix.

    Raises InvalidConfig for unsupported values.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidConfig(f"security.protocol: {protocol!r} is none of {', '.join(PROTOCOLS)}")
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "PLAIN")).upper()
    username, password = _credentials(properties)
    if protocol.startswith("SASL_"):
        if mechanism not in MECHANISMS:
            raise InvalidConfig(f"sasl.mechanism: {mechanism!r} is none of {', '.join(MECHANISMS)}")
        if not username:
            raise InvalidConfig("sasl.jaas.config: no username in it; or give sasl.username and sasl.password")
    return SecurityConfig(
        protocol=protocol,
        mechanism=mechanism,
        username=username,
        password=password,
        ca_file=_pem(properties, "ssl.ca.location", "ssl.truststore"),
        certificate_file=_pem(properties, "ssl.certificate.location", "ssl.keystore"),
        key_file=properties.get("ssl.key.location"),
        key_password=properties.get("ssl.key.password"),
        checks_hostname=properties.get("ssl.endpoint.identification.algorithm", "https") != "",
    )


def _credentials(properties: Mapping[str, str]) -> tuple[str, str]:
    jaas = {
        name: first or second for name, first, second in _JAAS_OPTION.findall(properties.get("sasl.jaas.config", ""))
    }
    username = properties.get("sasl.username", jaas.get("username", ""))
    return username, properties.get("sasl.password", jaas.get("password", ""))


def _pem(properties: Mapping[str, str], own_name: str, javas_name: str) -> str | None:
    if own_name in properties:
        return properties[own_name]
    location = properties.get(f"{javas_name}.location")
    if location is not None and properties.get(f"{javas_name}.type", "JKS").upper() != "PEM":
        raise InvalidConfig(
            f"{javas_name}.location: a Java key store cannot be read here; give a PEM file, as {own_name}"
        )
    return location
