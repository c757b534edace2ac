"""broker.handlers: one module per API or group of APIs; each turns a decoded request into a decoded response.

All but Produce and Fetch are imported at the first request of their API, so they may import kio's classes.
"""
