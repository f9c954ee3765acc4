"""The Messages protocol: its bodies as chat requests, outputs as its messages and events."""
