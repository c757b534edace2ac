"""Decodes requests and encodes responses of every API but Produce and Fetch, in any served version.

Handlers are written once, against the newest served version. Messages that a client exchanges before its first record
have hand-written codecs (see BY_HAND). All others are compiled from kio's schemas on first use, because importing all
of them would take longer than starting the broker. For the same reason the compilers are imported late.
"""

import builtins
import importlib
import sys
from collections import Counter
from functools import cache
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.bounded_reader import BoundedReader, body_reader

if TYPE_CHECKING:
    from headrace.protocol.error_counts import CountErrors, ErrorCounts
    from headrace.protocol.schema_reader import Read
    from headrace.protocol.schema_writer import Write

# Importing kio takes 25 ms or more, which a client's first Produce or Fetch should not wait for.
BY_HAND = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.CREATE_TOPICS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.LIST_OFFSETS,
        # Their older versions differ in structure from the newer ones, or they are frequent.
        ApiKey.FIND_COORDINATOR,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.UPDATE_FEATURES,
    }
)

_PHANTOM = "kio.static._phantom"


def load_codec(api: ApiKey, version: int) -> None:
    """Loads all that the first request and response of this version would otherwise load."""
    if api in BY_HAND:
        _codec_by_hand(api)
    else:
        _reader(api, version)
        _writer(api, version)
        _error_counter(api)


def read_request(api: ApiKey, version: int, body: memoryview) -> Any:
    """Decodes a request into an object of the newest served version. Raises ProtocolError for malformed bytes."""
    reader = body_reader(body, flexible=version >= SERVED[api].first_flexible)
    if api in BY_HAND:
        return _codec_by_hand(api).decode_request(reader, version)
    frugal = BoundedReader.of_body(reader)
    request = _reader(api, version)(frugal)
    frugal.expect_end()
    return request


def write_response(api: ApiKey, version: int, response: Any) -> bytes:
    """Encodes `response`, an object of the newest served version, as a body of `version`."""
    if api in BY_HAND:
        body: bytes = _codec_by_hand(api).encode_response(version, response)
        return body
    out = bytearray()
    _writer(api, version)(out, response)
    return bytes(out)


def count_errors(api: ApiKey, version: int, response: Any, counts: "ErrorCounts") -> None:
    """Adds the error codes that `write_response` writes, each as often as it occurs in the response."""
    if api in BY_HAND:
        _codec_by_hand(api).count_errors(version, response, counts)
    else:
        _error_counter(api)(response, counts)


def encode_element(api: ApiKey, version: int, array: str, element: Any) -> bytes:
    """Encodes one element of an array of structs. The result can be used as the element in a response.

    For long responses: a handler encodes them element by element and yields to the event loop in between. The name of
    a nested array has a dot: "results.topics".
    """
    from headrace.protocol.error_counts import encoded

    out = bytearray()
    _element_writer(api, version, array)(out, element)
    errors: Counter[int] = Counter()
    _element_error_counter(api, array)(element, errors)
    return encoded(bytes(out), errors)


def error_response(api: ApiKey, version: int, code: ErrorCode) -> bytes | None:
    """Encodes a response that has only the error; None for APIs whose errors are all in array elements."""
    if api in BY_HAND:
        codec = _codec_by_hand(api)
        failure = getattr(codec, "failure", None)
        return None if failure is None else codec.encode_response(version, failure(code))
    from headrace.protocol.schema import describe

    newest = message_class(api, SERVED[api].highest, "response")
    values = {field.name: field.default for field in describe(newest)}
    if "error_code" not in values:
        return None
    return write_response(api, version, newest(**{**values, "error_code": code}))


@cache
def _codec_by_hand(api: ApiKey) -> ModuleType:
    return importlib.import_module(f"headrace.protocol.messages.{api.name.lower()}")


@cache
def _reader(api: ApiKey, version: int) -> "Read":
    from headrace.protocol.schema_reader import compile_reader

    return compile_reader(message_class(api, version, "request"), message_class(api, SERVED[api].highest, "request"))


@cache
def _writer(api: ApiKey, version: int) -> "Write":
    from headrace.protocol.schema_writer import compile_writer

    return compile_writer(message_class(api, version, "response"), message_class(api, SERVED[api].highest, "response"))


@cache
def _element_writer(api: ApiKey, version: int, array: str) -> "Write":
    from headrace.protocol.schema_writer import compile_writer

    return compile_writer(_element_class(api, version, array), _element_class(api, SERVED[api].highest, array))


@cache
def _error_counter(api: ApiKey) -> "CountErrors":
    from headrace.protocol.error_counts import compile_counter

    return compile_counter(message_class(api, SERVED[api].highest, "response"))


@cache
def _element_error_counter(api: ApiKey, array: str) -> "CountErrors":
    from headrace.protocol.error_counts import compile_counter

    return compile_counter(_element_class(api, SERVED[api].highest, array))


def _element_class(api: ApiKey, version: int, array: str) -> type[Any]:
    from headrace.protocol.schema import describe

    message = message_class(api, version, "response")
    for name in array.split("."):
        struct = next(field.struct for field in describe(message) if field.name == name)
        assert struct is not None, f"{array} of {api.name} holds no structs"
        message = struct
    return message


def message_class(api: ApiKey, version: int, direction: str) -> type[Any]:
    """Returns kio's class of a message; `direction` is "request" or "response"."""
    _keep_kio_light()
    module = importlib.import_module(f"kio.schema.{api.name.lower()}.v{version}.{direction}")
    words = "".join(word.capitalize() for word in api.name.split("_"))
    found: type[Any] = getattr(module, words + direction.capitalize())
    return found


def _keep_kio_light() -> None:
    """Loads kio without hypothesis, which it imports for its own tests if it is installed: 0.8 s.

    Brokers often run in environments for tests, which have hypothesis. A process that has imported it keeps it.
    """
    if _PHANTOM in sys.modules or "hypothesis" in sys.modules:
        return
    spec = find_spec(_PHANTOM)
    assert spec is not None, "kio is installed with headrace"
    assert spec.loader is not None, "and it is an ordinary module"
    module = module_from_spec(spec)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import_without_hypothesis}
    spec.loader.exec_module(module)
    sys.modules.setdefault(_PHANTOM, module)


def _import_without_hypothesis(name: str, *arguments: Any, **keywords: Any) -> ModuleType:
    if name.partition(".")[0] == "hypothesis":
        raise ImportError(f"{name} is not needed here")
    return __import__(name, *arguments, **keywords)
