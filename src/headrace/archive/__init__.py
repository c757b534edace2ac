"""archive: topics as lake tables: settings, worker, status, history reads. Does not import Spark."""
