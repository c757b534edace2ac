"""routes: the paths of the REST interface, a noun a file. Each turns a request into calls of `client` and back."""
