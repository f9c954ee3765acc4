"""/v1/responses: items in, items out, kept for a while under an id."""
