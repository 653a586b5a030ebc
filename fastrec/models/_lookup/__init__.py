"""Lookups of many embedding tables at once, and of wide vectors once for every id: private to the models."""
