"""Forms of submissions: how predictions are written, checked and scored.

One form is for ranked lists and next items of sessions, one for a line per row.
"""
