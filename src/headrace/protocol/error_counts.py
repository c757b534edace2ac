"""Counts the error codes of a response: that of the request, and that of each array element.

As `errorCounts` of Kafka's AbstractResponse, without NONE. The fields with error codes are compiled once per class.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeAlias

from headrace.protocol.schema import describe

ErrorCounts: TypeAlias = "Counter[int]"
CountErrors: TypeAlias = Callable[[Any, ErrorCounts], None]


class EncodedWithErrors(bytes):
    """An encoded element of a response, with the error codes in it."""

    errors: ErrorCounts


def encoded(body: bytes, errors: ErrorCounts) -> bytes:
    """Returns the body with its error codes; plain bytes in the common case of no errors."""
    if not errors:
        return body
    element = EncodedWithErrors(body)
    element.errors = errors
    return element


def count_codes(codes: Iterable[int], counts: ErrorCounts) -> None:
    for code in codes:
        if code:
            counts[code] += 1


def compile_counter(message: type[Any]) -> CountErrors:
    """Compiles a function that adds the error codes of a response of the class, including those of encoded elements."""
    return _compile(message) or _count_nothing


def _count_nothing(response: Any, counts: ErrorCounts) -> None:
    """Counts nothing: for a class without error codes."""


def _compile(message: type[Any]) -> CountErrors | None:
    codes: list[Callable[[Any], Any]] = []
    structs: list[tuple[Callable[[Any], Any], CountErrors]] = []
    arrays: list[tuple[Callable[[Any], Any], CountErrors]] = []
    for field in describe(message):
        if field.kind == "error_code":
            assert not field.is_array, f"{message.__name__}.{field.name} is an array of error codes"
            codes.append(attrgetter(field.name))
        elif field.struct is not None and (nested := _compile(field.struct)) is not None:
            (arrays if field.is_array else structs).append((attrgetter(field.name), nested))
    if not codes and not structs and not arrays:
        return None

    def count(value: Any, counts: ErrorCounts) -> None:
        for get in codes:
            code = get(value)
            if code:
                counts[int(code)] += 1
        for get, count_struct in structs:
            struct = get(value)
            if struct is not None:
                count_struct(struct, counts)
        for get, count_element in arrays:
            for element in get(value) or ():
                if not isinstance(element, bytes):
                    count_element(element, counts)
                elif isinstance(element, EncodedWithErrors):
                    counts.update(element.errors)

    return count
