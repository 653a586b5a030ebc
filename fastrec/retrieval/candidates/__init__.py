"""Candidates: a short list of items for each session, from several sources, for a ranker to order."""
