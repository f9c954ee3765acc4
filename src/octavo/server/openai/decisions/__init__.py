"""/v1/decisions: questions about an input, answered by the probabilities of their possible answers."""
