"""UpdateFeatures, versions 0 to 2: older versions return an error per feature, the newest one error."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.protocol.bounded_reader import FIELD_WEIGHT, OBJECT_WEIGHT, POINTER_WEIGHT, BoundedReader
from headrace.protocol.primitives import INT16, INT32, Reader, array_length, nullable_string, string

VALIDATE_ONLY_FROM = 1
ONE_ERROR_FROM = 2

_UPDATE_BYTES_MIN = 5
_UPDATE_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 2 * FIELD_WEIGHT


class FeatureUpdate(NamedTuple):
    feature: str
    level: int  # 0: disables the feature


class UpdateFeaturesRequest(NamedTuple):
    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class FeatureRow(NamedTuple):
    feature: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class UpdateFeaturesResponse(NamedTuple):
    error: ErrorCode = ErrorCode.NONE  # of the request as a whole
    message: str | None = None
    rows: Sequence[FeatureRow] = ()
    throttle_ms: int = 0


def failure(code: ErrorCode) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(code)


def decode_request(body: Reader, version: int) -> UpdateFeaturesRequest:
    reader = BoundedReader.of_body(body)
    reader.int32()  # timeout; unused, because the response is immediate
    updates = tuple([_update(reader) for _ in reader.elements(_UPDATE_BYTES_MIN, _UPDATE_WEIGHT)])
    validate_only = reader.boolean() if version >= VALIDATE_ONLY_FROM else False
    reader.skip_tags()
    reader.expect_end()
    return UpdateFeaturesRequest(updates, validate_only)


def _update(reader: BoundedReader) -> FeatureUpdate:
    feature, level = reader.string(), reader.int16()
    reader.int8()  # upgrade type, a boolean for downgrades in version 0; unused, because no level can be changed
    reader.skip_tags()
    return FeatureUpdate(feature, level)


def count_errors(version: int, response: UpdateFeaturesResponse, counts: Counter[int]) -> None:
    if version >= ONE_ERROR_FROM:
        response = _with_first_refusal(response)._replace(rows=())
    for error in (response.error, *(row.error for row in response.rows)):
        if error:
            counts[error] += 1


def encode_response(version: int, response: UpdateFeaturesResponse) -> bytes:
    if version >= ONE_ERROR_FROM:
        return _head(_with_first_refusal(response)) + b"\x00"
    rows = [
        string(row.feature, True) + INT16.pack(row.error) + nullable_string(row.message, True) + b"\x00"
        for row in response.rows
    ]
    return _head(response) + array_length(len(rows), True) + b"".join(rows) + b"\x00"


def _with_first_refusal(response: UpdateFeaturesResponse) -> UpdateFeaturesResponse:
    refused = [row for row in response.rows if row.error]
    if response.error or not refused:
        return response
    return response._replace(error=refused[0].error, message=refused[0].message)


def _head(response: UpdateFeaturesResponse) -> bytes:
    return INT32.pack(response.throttle_ms) + INT16.pack(response.error) + nullable_string(response.message, True)
