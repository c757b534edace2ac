"""ApiVersions, versions 0 to 4: the first message of every client, so this module imports as little as possible.

Advertises the content of `api.SERVED`. The response to a request with a higher version than that has version 0, which
every client can decode.
"""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED
from headrace.protocol.primitives import INT16, INT32, INT64, Reader, array_length, string, uvarint

THROTTLE_FROM = 1
SOFTWARE_NAME_FROM = 3
FLEXIBLE_FROM = 3
FEATURES_FROM_ZERO_FROM = 4

_ROW = Struct(">hhh")
_SUPPORTED_FEATURES_TAG = 0
_FEATURES_EPOCH_TAG = 1
_FINALIZED_FEATURES_TAG = 2


class Feature(NamedTuple):
    """A cluster-wide feature that clients enable by its level; at level 0 it is disabled."""

    name: str
    lowest: int
    highest: int
    level: int


class ApiVersionsRequest(NamedTuple):
    software_name: str = ""
    software_version: str = ""

    @property
    def is_valid(self) -> bool:
        """Returns whether the software name is valid.

        It is absent below version 3; later it must not allow log injection.
        """
        if self == ("", ""):
            return True
        return _is_software_word(self.software_name) and _is_software_word(self.software_version)


class ApiVersionsResponse(NamedTuple):
    error: int = ErrorCode.NONE
    throttle_ms: int = 0
    features: Sequence[Feature] = ()
    features_epoch: int = 0  # -1 would mean that the broker's features are unknown


def decode_request(reader: Reader, version: int) -> ApiVersionsRequest:
    if version < SOFTWARE_NAME_FROM:
        reader.expect_end()
        return ApiVersionsRequest()
    request = ApiVersionsRequest(reader.string(), reader.string())
    reader.skip_tags()
    reader.expect_end()
    return request


def count_errors(version: int, response: ApiVersionsResponse, counts: Counter[int]) -> None:
    if response.error:
        counts[response.error] += 1


def encode_response(version: int, response: ApiVersionsResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end_of_row = b"\x00" if flexible else b""
    rows = b"".join(
        _ROW.pack(api, versions.advertised_lowest, versions.highest) + end_of_row for api, versions in SERVED.items()
    )
    body = INT16.pack(response.error) + array_length(len(SERVED), flexible) + rows
    if version >= THROTTLE_FROM:
        body += INT32.pack(response.throttle_ms)
    return body + _features(version, response) if flexible else body


def unsupported_version_body() -> bytes:
    """Returns the response to an unsupported version: the served versions, in the body of version 0."""
    return encode_response(0, ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION))


def _features(version: int, response: ApiVersionsResponse) -> bytes:
    """Encodes the tagged fields, in the order of their tags; fields with their default value are omitted."""
    features = _readable(version, response.features)
    supported = b"".join(
        string(feature.name, True) + INT16.pack(feature.lowest) + INT16.pack(feature.highest) + b"\x00"
        for feature in features
    )
    finalized = [feature for feature in response.features if feature.level]
    levels = b"".join(
        string(feature.name, True) + INT16.pack(feature.level) + INT16.pack(feature.level) + b"\x00"
        for feature in finalized
    )
    tags = []
    if features:
        tags.append((_SUPPORTED_FEATURES_TAG, uvarint(len(features) + 1) + supported))
    if response.features_epoch != -1:
        tags.append((_FEATURES_EPOCH_TAG, INT64.pack(response.features_epoch)))
    if finalized:
        tags.append((_FINALIZED_FEATURES_TAG, uvarint(len(finalized) + 1) + levels))
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in tags)


def _readable(version: int, features: Sequence[Feature]) -> Sequence[Feature]:
    """Returns the features for this version. Clients with version 3 reject a feature whose range starts at 0."""
    if version >= FEATURES_FROM_ZERO_FROM:
        return features
    return [feature for feature in features if feature.lowest > 0]


def _is_software_word(word: str) -> bool:
    """Returns whether a word has only letters and digits, with dots and dashes only inside."""
    inner = word.replace("-", "").replace(".", "")
    return word.isascii() and inner.isalnum() and word[0] not in "-." and word[-1] not in "-."
