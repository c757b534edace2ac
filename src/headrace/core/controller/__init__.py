"""core.controller: pure changes of cluster metadata: image and request in, records out."""
