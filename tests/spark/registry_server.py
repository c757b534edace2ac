"""A schema registry for tests: a real HTTP server that answers what decoders ask one for."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator


class RegistryServer:
    """Ids are given in the order of registering, from 1; a subject's newest schema is the last one."""

    def __init__(self, port: int = 0) -> None:
        self._answers: dict[str, dict[str, Any]] = {}
        self._ids = 0
        self._versions: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.password: str | None = None  # whoever asks needs this Authorization, if there is one
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def register(
        self, subject: str, schema: str, kind: str | None = None, references: dict[str, tuple[str, int]] | None = None
    ) -> int:
        """`kind` is left out for Avro, as registries do; `references` are subject and version by name."""
        self._ids += 1
        answer: dict[str, Any] = {"schema": schema} | ({"schemaType": kind} if kind else {})
        if references:
            answer["references"] = [
                {"name": name, "subject": other, "version": version} for name, (other, version) in references.items()
            ]
        self._versions[subject] += 1
        self._answers[f"/subjects/{subject}/versions/{self._versions[subject]}"] = answer
        self._answers[f"/schemas/ids/{self._ids}"] = answer
        self._answers[f"/subjects/{subject}/versions/latest"] = answer | {"subject": subject, "id": self._ids}
        return self._ids

    @contextmanager
    def serving(self) -> Iterator[RegistryServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = unquote(self.path)
                registry.asked[path] += 1
                if registry.password not in (None, self.headers["Authorization"]):
                    self.send_error(401)
                    return
                found = registry._answers.get(path)
                body = json.dumps(found or {"error_code": 40403, "message": "not found"}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: the tests look at what was asked."""

        return Handler


def framed(schema_id: int, payload: bytes) -> bytes:
    """Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload
