"""broker.handlers: one file per API or family of APIs; each turns a decoded request into a decoded response."""
