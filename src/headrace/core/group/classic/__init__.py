"""core.group.classic: groups of the classic protocol."""
