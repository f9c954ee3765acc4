"""What no provider's protocol has: tokens of texts, and how near texts are to each other."""
