"""broker.handlers: one file per API or family of APIs; each turns a decoded request into a decoded response.

All but Produce and Fetch are imported when their API is first asked for, so they may import kio's classes.
"""
