"""spark: topics as Spark DataFrames, for batch and streaming reads and writes. Objects are picklable; the package is an
ordinary Kafka client.
"""
