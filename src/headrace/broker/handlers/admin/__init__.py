"""broker.handlers.admin: topics, configs, ACLs, reassignments and log directories."""
