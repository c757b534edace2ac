"""transaction: who owns a transactional id, and how each of its transactions ends. Pure; writes no marker itself."""
