"""config: config keys, typed settings, the YAML reader and the loader."""
