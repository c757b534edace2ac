"""Client side of SCRAM (RFC 5802), one token at a time. Pure; performs no I/O."""

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode

from headrace.model.errors import InvalidConfig

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# Fewer iterations would allow guessing the password from a recorded exchange; more would let a broker waste CPU time.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000


class ScramError(ConnectionError):
    """Authentication failed, or the broker could not prove that it knows the password."""


class ScramClient:
    def __init__(self, mechanism: str, username: str, password: str, nonce: str | None = None) -> None:
        if mechanism not in _HASHES:
            raise InvalidConfig(f"there is no mechanism {mechanism!r}")
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def step(self, said: bytes) -> bytes | None:
        """Returns the proof for the broker's challenge; None after the broker's own proof, which is verified."""
        fields = dict(part.split("=", 1) for part in said.decode().split(",") if "=" in part)
        if "e" in fields:
            raise ScramError(f"authentication failed: {fields['e']}")
        if self._server_signature is None:
            return self._proof(said.decode(), fields)
        if not hmac.compare_digest(b64decode(fields.get("v", "")), self._server_signature):
            raise ScramError(
                "the server's signature is invalid: it does not know the password, so it is not the right broker"
            )
        return None

    def _proof(self, challenge: str, fields: dict[str, str]) -> bytes:
        nonce, iterations = fields.get("r", ""), int(fields.get("i", "0"))
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not begin with the client's nonce")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramError(f"the broker requests {iterations} iterations; the minimum is {ITERATIONS_MIN}")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, b64decode(fields.get("s", "")), iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        auth_message = f"{self._first_bare},{challenge},{without_proof}".encode()
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), auth_message)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)
