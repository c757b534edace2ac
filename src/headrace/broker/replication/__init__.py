"""replication: followers fetch from leaders, leaders see who keeps up, and the controller sees who is there."""
