"""How models spell reasoning and tool calls in their output: one dialect a file, one reader for all of them."""
