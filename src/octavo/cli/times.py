"""Times as people read them."""

from __future__ import annotations


def seconds(value: object) -> str:
    """`1.3 ms`, `130 ms`, `1.30 s`, `2.5 min`; nothing for what is not known."""
    if not isinstance(value, (int, float)):
        return ""
    if value < 0.9995:
        return f"{value * 1000:.{1 if value < 0.0095 else 0}f} ms"
    return f"{value:.{2 if value < 10 else 1}f} s" if value < 120 else f"{value / 60:.1f} min"
