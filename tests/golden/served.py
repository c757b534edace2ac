"""What the broker serves, as it says itself: API key → lowest and highest version."""

from collections.abc import Mapping
from functools import cache
from struct import pack

from tests.golden.broker_under_test import BrokerUnderTest
from tests.golden.messages import read_response, request_frame

API_VERSIONS, PRODUCE = 18, 0
# Produce is advertised from 0, for librdkafka's sake, and served from 3.
LOWEST_PRODUCE = 3


@cache
def served() -> Mapping[int, tuple[int, int]]:
    fields = {"client_software_name": "golden", "client_software_version": "1"}
    frame = request_frame(API_VERSIONS, 4, fields, 0)
    with BrokerUnderTest() as broker:
        client = broker.connect()
        client.send(pack(">i", len(frame)) + frame)
        broker.settle()
        [answer] = client.received()
    rows = read_response(API_VERSIONS, 4, answer)["api_keys"]
    found = {row["api_key"]: (row["min_version"], row["max_version"]) for row in rows}
    found[PRODUCE] = (LOWEST_PRODUCE, found[PRODUCE][1])
    return found
