"""States of idempotent and transactional producers."""
