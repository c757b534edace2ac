"""Hand-written codecs, one module per API."""
