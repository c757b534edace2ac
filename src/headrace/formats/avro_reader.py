"""Decodes Avro values to dictionaries with fastavro.

fastavro accepts some bytes that no Avro writer produces, and some bytes make it loop forever or crash the process. It
is therefore given a schema of the same encoding that closes these gaps:

    logical types    removed: the columns convert the plain numbers and bytes
    boolean          a fixed of one byte: fastavro decodes every byte but 0 as true
    union            of several types: each branch is a record with one field, which identifies the branch in the row.
                     Branches without valid bytes follow: fastavro uses the last branch for index -1
    enum             the same, with symbols that are not text
    array            rejected if an item may have no bytes: fastavro would loop over a count of 2^62 items
    recursion        rejected: fastavro is compiled, so deep nesting overflows the stack of the process
"""

from io import BytesIO
from typing import Any

from headrace.formats.avro_schema import AvroSchema, kind_of, logical_types, member_name, union_members
from headrace.formats.errors import DoesNotDecode
from headrace.formats.row_decoder import Read
from headrace.model.errors import InvalidConfig

# The number of negative indexes in one byte. fastavro's time for a union grows with the number of its branches.
_PADDING = 64
_NO_BRANCH = {"type": "fixed", "name": "headrace.no_branch", "size": 2**62}
_NO_SYMBOL = object()
_BOOLEAN = {"type": "fixed", "name": "headrace.boolean", "size": 1}


def reader_of(schema: AvroSchema) -> Read:
    """Returns a reader of values written with this schema."""
    return _reading(_Readable(schema).tree(), None)


def resolver(writer: AvroSchema, reader: AvroSchema) -> Read:
    """Returns a reader of values written with `writer`, by Avro's rules of schema resolution."""
    there, wanted = logical_types(writer), logical_types(reader)
    for path in there.keys() & wanted.keys():
        if there[path] != wanted[path]:
            raise InvalidConfig(f"{path} is {there[path]} there, and {wanted[path]} here")
    return _reading(_Readable(writer).tree(), _Readable(reader).tree())


def _reading(writer: Any, reader: Any) -> Read:
    import fastavro

    schemaless_reader = fastavro.schemaless_reader

    def read(value: bytes) -> Any:
        stream = BytesIO(value)
        try:
            row = schemaless_reader(stream, writer, reader)
        except EOFError as error:  # its text contains the address of an object, and would differ for every record
            raise DoesNotDecode("not Avro of this schema: it ends too early") from error
        except Exception as error:  # malformed bytes make fastavro raise IndexError, ValueError, TypeError …
            raise DoesNotDecode(f"not Avro of this schema: {type(error).__name__} {error}") from error
        if stream.tell() != len(value):
            raise DoesNotDecode(f"not Avro of this schema: {len(value) - stream.tell()} bytes are left over")
        return row

    return read


class _Readable:
    """A schema for fastavro: every name is replaced by its definition."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._made: dict[str, Any] = {}  # by full name

    def tree(self) -> Any:
        tree = self._of(self._schema.root, ())
        return {**tree, "__fastavro_parsed": True, "__named_schemas": {}}

    def _of(self, schema: Any, inside: tuple[str, ...]) -> Any:
        schema = self._schema.resolved(schema)
        match kind_of(schema):
            case "union":
                return self._union(schema if isinstance(schema, list) else schema["type"], inside)
            case "record" | "error":
                return self._record(schema, inside)
            case "array":
                items = self._of(schema["items"], inside)
                if _may_be_empty(items):
                    raise InvalidConfig("the Avro schema has an array whose items may take no bytes")
                return {"type": "array", "items": items}
            case "map":
                return {"type": "map", "values": self._of(schema["values"], inside)}
            case "enum":
                symbols = [*schema["symbols"], *[_NO_SYMBOL] * _PADDING]
                return {**_without_logical(schema), "symbols": symbols}
            case "fixed":
                return _without_logical(schema)
            case "boolean":
                return _BOOLEAN
            case kind:
                return kind if kind not in self._schema.named else self._of(kind, inside)

    def _record(self, record: Any, inside: tuple[str, ...]) -> Any:
        name = record["name"]
        if name in inside:
            raise InvalidConfig(f"the Avro record {name} contains itself; a table has no recursive types")
        if name not in self._made:
            fields = [{**one, "type": self._of(one["type"], (*inside, name))} for one in record["fields"]]
            for one, original in zip(fields, record["fields"], strict=True):
                _wrap_default(one, original["type"])
            self._made[name] = {**_without_logical(record), "type": "record", "fields": fields}
        return self._made[name]

    def _union(self, branches: list[Any], inside: tuple[str, ...]) -> list[Any]:
        several = len(union_members(branches)) > 1
        made, member = [], 0
        for one in branches:
            if kind_of(one) == "null":
                made.append("null")
                continue
            read = self._of(one, inside)
            made.append(_wrapped(read, self._schema.resolved(one), member) if several else read)
            member += 1
        return [*made, *[_NO_BRANCH] * _PADDING]


def _wrapped(read: Any, schema: Any, at: int) -> Any:
    """Wraps a branch in a record of one field, which has the bytes of the field. Its name contains the type, so that
    schema resolution finds it at another position.
    """
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else kind_of(schema)
    field = {"name": member_name(at), "type": read, "aliases": [f"member{other}" for other in range(_MEMBERS_MAX)]}
    return {"type": "record", "name": f"headrace.union.{name.replace('.', '_')}", "fields": [field]}


_MEMBERS_MAX = 64  # up to this many branches, a type may be at another position in the writer's union


def _wrap_default(field: dict[str, Any], schema: Any) -> None:
    """Wraps a default, which belongs to the first branch."""
    if not isinstance(schema, list) or "default" not in field or len(union_members(schema)) < 2:
        return
    if kind_of(schema[0]) != "null":
        field["default"] = {member_name(0): field["default"]}


def _without_logical(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}


def _may_be_empty(schema: Any) -> bool:
    """Whether a value may have no bytes."""
    if schema == "null":
        return True
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    return schema["type"] == "record" and all(_may_be_empty(one["type"]) for one in schema["fields"])
