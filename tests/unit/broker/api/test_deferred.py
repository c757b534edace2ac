"""An answer that comes later: told once, whichever of the two comes first."""

import pytest

from headrace.broker.api.deferred import DeferredResponse
from headrace.model.errors import RequestError


def test_an_answer_that_is_there_already_is_told_at_once() -> None:
    later = DeferredResponse[int](lambda reply: reply + 1)
    later.settle(1)
    told: list[int] = []
    later.then(lambda one: told.append(one.response()))
    assert told == [2]


def test_an_answer_that_is_awaited_is_told_when_it_comes() -> None:
    later = DeferredResponse[int](lambda reply: reply + 1)
    told: list[int] = []
    later.then(lambda one: told.append(one.response()))
    assert (told, later.is_settled) == ([], False)
    later.settle(1)
    assert told == [2]


def test_what_building_the_response_raises_reaches_whoever_asks_for_it() -> None:
    def refuse(reply: object) -> int:
        raise RequestError(str(reply))

    later = DeferredResponse(refuse)
    later.settle("no")
    with pytest.raises(RequestError):
        later.response()
