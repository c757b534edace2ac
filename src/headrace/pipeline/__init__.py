"""pipeline: pipeline definitions, state, supervision, progress, dead-letter records. Does not import Spark."""
