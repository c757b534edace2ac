"""broker.handlers.admin: topics, configs, ACLs, reassignments, log directories."""
