"""config.keys: the tables of config keys."""
