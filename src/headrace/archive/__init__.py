"""archive: topics as lake tables: settings, worker, status, history reads. No Spark."""
