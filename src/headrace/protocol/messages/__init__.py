"""protocol.messages: hand-written codecs, one file per API."""
