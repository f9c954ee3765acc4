"""Outputs that must have a form: a schema, an expression or a grammar becomes a mask over the next tokens."""
