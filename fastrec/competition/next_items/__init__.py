"""Recipes for sessions whose next item is asked: the run, its form, predictions from a run directory."""
