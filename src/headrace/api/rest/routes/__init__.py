"""routes: the paths of the REST API, one resource per module. Each translates requests to calls of `client`."""
