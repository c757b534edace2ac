"""security: who may do what: principals, and the one table of API, resource and operation. Knows model."""
