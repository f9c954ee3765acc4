"""Batch files: requests in a file, answered by the endpoints of the server, without a socket."""
