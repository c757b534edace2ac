"""The response to a poll: made when its turn comes, unless its client has gone, and noted as sent when it was."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.responses import Response

from headrace.gateway.bodies import Receive, Scope, Send
from headrace.gateway.connections import unread, while_connected
from headrace.gateway.consumers import Consumer
from headrace.gateway.deliveries import Delivery

if TYPE_CHECKING:
    from confluent_kafka import Message


class PollResponse(Response):
    def __init__(
        self,
        consumer: Consumer,
        touch: Callable[[], None],
        show: "Callable[[list[Message]], bytes]",
        count_max: int,
        wait_s: float,
        delivery: int | None,
    ) -> None:
        """`touch` keeps the consumer from being removed, and raises if it has been; `show` writes the body."""
        super().__init__(media_type="application/json")
        self._consumer, self._touch, self._show = consumer, touch, show
        self._count_max, self._wait_s, self._delivery = count_max, wait_s, delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Cancelled only while it waits, for its turn or for records: nothing has been taken for it then.
        await while_connected(scope, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        consumer, lost = self._consumer, unread(scope)
        async with consumer.turn:
            if lost.is_set():
                return  # its client has gone while others had their turn: it acknowledges nothing
            self._touch()
            consumer.deliveries.next_poll(self._delivery)
            messages = await consumer.member.poll(self._count_max, self._wait_s)
            delivery = consumer.deliveries.deliver(messages, lost)
            self._touch()
            await self._send(delivery, messages, scope, receive, send)

    async def _send(
        self, delivery: Delivery | None, messages: "list[Message]", scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Nothing that was taken is lost if this fails: it is delivered again unless it is noted as sent."""
        self.body = self._show(messages)
        self.init_headers()
        await super().__call__(scope, receive, send)
        if delivery is not None:
            delivery.sent = True
