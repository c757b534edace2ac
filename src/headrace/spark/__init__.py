"""spark: topics as Spark DataFrames, read and written, batch and streaming. Picklable, and a client like any other."""
