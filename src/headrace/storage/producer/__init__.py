"""storage.producer: states of idempotent and transactional producers."""
