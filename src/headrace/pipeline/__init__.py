"""pipeline: pipeline definitions, state, supervision, progress, dead letters. No Spark."""
