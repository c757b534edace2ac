"""core.transaction: transactional ids, their producers, and the outcome of transactions. Pure; writes no markers."""
