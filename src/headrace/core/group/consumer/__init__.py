"""modern: consumer groups whose assignment the broker decides (KIP-848). Pure, as everything in core."""
