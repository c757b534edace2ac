"""config: every config key, the typed settings, the YAML reader and the loader."""
