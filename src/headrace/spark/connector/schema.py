"""The columns of a topic, as in Spark's Kafka connector, and the columns that a user's schema may omit."""

from difflib import get_close_matches

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.model.errors import InvalidConfig

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

# Not a DDL string: parsing one requires a JVM, which workers do not have.
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(HEADER),
}


def full_schema(*, include_headers: bool) -> StructType:
    wanted = [name for name in COLUMNS if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in wanted])


def check_schema(wanted: StructType) -> None:
    """Validates a user's schema: columns may be omitted, and are then never decoded; types are fixed."""
    for column in wanted.fields:
        right = COLUMNS.get(column.name)
        if right is None:
            near = get_close_matches(column.name, COLUMNS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COLUMNS)}"
            raise InvalidConfig(f"schema: a topic has no column {column.name!r}; {hint}")
        if right != column.dataType:
            raise InvalidConfig(
                f"schema: {column.name} is {right.simpleString()}, not {column.dataType.simpleString()}; "
                "read it so and cast it"
            )
