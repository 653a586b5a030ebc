"""Recipes for sessions whose next item is asked.

``recipe.py`` is the recipe and its run, ``parts.py`` what an interrupted run goes on from, ``predict.py`` predicts from
a run directory. The submission's form is in ``forms/``.
"""
