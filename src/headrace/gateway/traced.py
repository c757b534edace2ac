"""What stands before everything else when requests are traced: a span for each, named by its route."""

from headrace.gateway.bodies import Message, Receive, Scope, Send, header
from headrace.gateway.front import Front, route_of
from headrace.telemetry.tracing import CARRIED, Tracer

FAILED_FROM = 500  # a client's own mistake is no error of the server's: so OpenTelemetry has it


class Traced:
    def __init__(self, front: Front, tracer: Tracer) -> None:
        self._front, self._tracer = front, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._front(scope, receive, send)
            return
        sent = {name: header(scope, name.encode()) for name in CARRIED}
        carrier = {name: value.decode("latin-1") for name, value in sent.items() if value is not None}
        with self._tracer.span(scope["method"], carrier) as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set("http.response.status_code", status)
                    if status >= FAILED_FROM:
                        span.failed(str(status))
                await send(message)

            try:
                await self._front(scope, receive, noting)
            finally:
                route = route_of(scope)
                span.name(f"{scope['method']} {route}")
                span.set("http.request.method", scope["method"])
                span.set("http.route", route)
                span.set("url.path", scope["path"])
