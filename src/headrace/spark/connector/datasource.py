"""`format("headrace")`: the entry point of the data source for Spark."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.client.reader.read_options import read_options
from headrace.model.errors import InvalidConfig
from headrace.spark.connector.reader import HeadraceBatchReader
from headrace.spark.connector.schema import check_schema, full_schema
from headrace.spark.connector.stream_reader import HeadraceStreamReader


class HeadraceDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return full_schema(include_headers=str(self.options.get("includeHeaders", "")).lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(schema)
        options = read_options(self.options, streaming=False)
        if options.history:
            from headrace.spark.connector.history_reader import (
                HeadraceHistoryReader,  # imports the table libraries, which other reads do not need
            )

            return HeadraceHistoryReader(options, schema)
        return HeadraceBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_schema(schema)
        options = read_options(self.options, streaming=True)
        if options.history:
            from headrace.spark.connector.history_reader import HeadraceHistoryStreamReader

            return HeadraceHistoryStreamReader(options, schema)
        return HeadraceStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidConfig("mode: a topic cannot be overwritten; use append")
        from headrace.spark.connector.sink import HeadraceBatchWriter, HeadraceNumberedWriter

        # Keeps the writer's imports out of workers that only read.
        from headrace.spark.connector.write_options import write_options

        options = write_options(self.options)
        return (HeadraceNumberedWriter if options.numbered else HeadraceBatchWriter)(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from headrace.spark.connector.sink import HeadraceStreamWriter
        from headrace.spark.connector.write_options import write_options

        return HeadraceStreamWriter(write_options(self.options), schema)
