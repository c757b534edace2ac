"""Kafka's message schemas, as plain descriptions that are derived from kio's generated classes.

Only the descriptions are used. kio's own reader must never parse a client's bytes: an array count of five bytes makes
it allocate 32 GiB and abort the whole process.
"""

from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Value of a field that a version does not have, if the schema names no default.
_IMPLICIT_DEFAULTS: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "uuid": None,  # kio's null of the all-zero id
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": EPOCH,
}


class FieldSchema(NamedTuple):
    name: str
    kind: str  # Kafka's name of the primitive type; empty for a struct
    struct: type[Any] | None
    is_array: bool
    nullable: bool  # for an array: whether the array itself may be null
    tag: int | None
    default: Any


def describe(message: type[Any]) -> tuple[FieldSchema, ...]:
    """Returns the fields of one of kio's message classes, in protocol order."""
    return tuple(_describe_field(field) for field in fields(message))


def _describe_field(field: Any) -> FieldSchema:
    inner, nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner = get_args(inner)[0]
    struct: type[Any] | None = inner if isinstance(inner, type) and is_dataclass(inner) else None
    kind = "" if struct is not None else field.metadata["kafka_type"]
    default = field.default
    if default is MISSING:
        default = () if is_array else _implicit_default(kind, struct, nullable)
    return FieldSchema(field.name, kind, struct, is_array, nullable, field.metadata.get("tag"), default)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    (inner,) = (part for part in get_args(annotation) if part is not NoneType)
    return inner, True


def _implicit_default(kind: str, struct: Any, nullable: bool) -> Any:
    if struct is not None:
        return None if nullable else struct(**{field.name: field.default for field in describe(struct)})
    return _IMPLICIT_DEFAULTS.get(kind, 0)
