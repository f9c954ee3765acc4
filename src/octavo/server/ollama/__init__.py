"""Ollama's protocol under /api: its bodies as chat requests, outputs as lines of JSON, lists of models."""
