"""What every broker of this release can do beyond the versions of its APIs, by Kafka's names for it.

A level says how a feature works, and a release works in one way: so the levels cannot be changed apart from it, and the
range that is supported is that one level. A client that does not know a feature keeps to older ways.
"""

from headrace.protocol.api_versions import Feature

FEATURES = (
    Feature("group.version", lowest=1, highest=1, level=1),  # KIP-848: groups whose assignment the broker decides
    Feature("transaction.version", lowest=2, highest=2, level=2),  # KIP-890: epochs bumped at every end
)
