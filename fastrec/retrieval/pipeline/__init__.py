"""Retrieve, filter, score, order: the four stages from sessions to a ranked list."""
