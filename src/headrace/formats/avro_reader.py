"""Avro values to dictionaries, by fastavro.

fastavro takes some bytes that no Avro writer writes, and some bytes make it run for ever or end the process. The schema
that it is given is therefore not the user's, but one of the same encoding that closes these gaps:

    logical types    left out: the plain numbers and bytes are converted by the columns
    boolean          fixed of one byte: fastavro takes every byte but 0 for true
    union            of several types: each branch a record with one field, so that the row tells which branch it was.
                     Behind the branches stand ones that no bytes can fill: fastavro takes index -1 for the last branch
    enum             the same, by symbols that are no text
    array            refused if an item may take no bytes: a count of 2^62 items would be believed
    recursion        refused: fastavro is compiled, so deep nesting overflows the stack of the process
"""

from io import BytesIO
from typing import Any

from headrace.formats.avro_schema import AvroSchema, kind_of, logical_types, member_name, union_members
from headrace.formats.errors import DoesNotDecode
from headrace.formats.row_decoder import Read
from headrace.model.errors import InvalidConfig

# As many as one byte has indexes below zero. fastavro's time for a union grows with the number of its branches.
_PADDING = 64
_NO_BRANCH = {"type": "fixed", "name": "headrace.no_branch", "size": 2**62}
_NO_SYMBOL = object()
_BOOLEAN = {"type": "fixed", "name": "headrace.boolean", "size": 1}


def reader_of(schema: AvroSchema) -> Read:
    """Reads what was written with this very schema."""
    return _reading(_Readable(schema).tree(), None)


def resolver(writer: AvroSchema, reader: AvroSchema) -> Read:
    """Reads what was written with one schema as the other, by Avro's rules of schema resolution."""
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
        except EOFError as error:  # its text names an object of this process, and would differ from record to record
            raise DoesNotDecode("not Avro of this schema: it ends too early") from error
        except Exception as error:  # fastavro raises whatever the bytes lead it to: IndexError, ValueError, TypeError …
            raise DoesNotDecode(f"not Avro of this schema: {type(error).__name__} {error}") from error
        if stream.tell() != len(value):
            raise DoesNotDecode(f"not Avro of this schema: {len(value) - stream.tell()} bytes are left over")
        return row

    return read


class _Readable:
    """A schema as fastavro is given it: every name replaced by what it stands for."""

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
    """A record of one field has the bytes of the field. Named by its type, so that resolution finds it elsewhere."""
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else kind_of(schema)
    field = {"name": member_name(at), "type": read, "aliases": [f"member{other}" for other in range(_MEMBERS_MAX)]}
    return {"type": "record", "name": f"headrace.union.{name.replace('.', '_')}", "fields": [field]}


_MEMBERS_MAX = 64  # of a union: where a type stands in the writer's does not matter up to here


def _wrap_default(field: dict[str, Any], schema: Any) -> None:
    """A default is one of the first branch."""
    if not isinstance(schema, list) or "default" not in field or len(union_members(schema)) < 2:
        return
    if kind_of(schema[0]) != "null":
        field["default"] = {member_name(0): field["default"]}


def _without_logical(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}


def _may_be_empty(schema: Any) -> bool:
    """Whether a value may take no bytes at all."""
    if schema == "null":
        return True
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "fixed":
        return bool(schema["size"] == 0)
    return schema["type"] == "record" and all(_may_be_empty(one["type"]) for one in schema["fields"])
