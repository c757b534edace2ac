"""spark.sql: SQL over topics, their archives and lake tables, in a Spark session that stays open between queries."""
