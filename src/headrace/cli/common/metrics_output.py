"""Metrics of pipelines and archives: printed for Prometheus' textfile collector, or served over HTTP."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.errors import failures_told
from headrace.cli.common.output import note
from headrace.client.core.errors import KafkaApiError
from headrace.model.errors import HeadraceError
from headrace.telemetry.prometheus import TEXT

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

Listen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Serve the metrics at /metrics until Ctrl-C.")
]


def print_or_serve(text: Callable[[], str], listen: str | None) -> None:
    """Prints the metrics once, or serves them. `text` is called for every scrape."""
    if listen is None:
        print(text(), end="")
        return
    from http.server import ThreadingHTTPServer

    from headrace.config.settings import split_address

    with failures_told():
        server = ThreadingHTTPServer(split_address(listen), _handler(text))
        note(f"metrics at http://{server.server_address[0]!s}:{server.server_address[1]}/metrics")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
        finally:
            server.server_close()


def _handler(text: Callable[[], str]) -> "type[BaseHTTPRequestHandler]":
    from http.server import BaseHTTPRequestHandler

    class MetricsHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = self._answer()
            self.send_response(code)
            self.send_header("Content-Type", TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, bytes]:
            if self.path.partition("?")[0] != "/metrics":
                return 404, b"not found; metrics are at /metrics\n"
            try:
                return 200, text().encode()
            except (HeadraceError, KafkaApiError, OSError) as error:  # the next scrape may reach the broker
                return 503, f"{error}\n".encode()

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: scrapes are too frequent."""

    return MetricsHandler
