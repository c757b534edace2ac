"""spark.sql: SQL over topics, their archives and lake tables, by a Spark that stays between the queries."""
