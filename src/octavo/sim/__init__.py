"""Foresight: what a model needs on a machine, and a service in virtual time with the scheduler that serves."""
