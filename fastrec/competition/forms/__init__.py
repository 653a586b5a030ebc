"""Submission forms: how a file of predictions looks, is written, checked and scored.

One form for ranked lists, one for a line per row, one for the next items of sessions.
"""
