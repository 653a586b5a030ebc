"""How a submission looks, how it is written, checked and scored.

A form each: ``list_form.py`` (ranked lists), ``value_form.py`` (a line per row), ``next_item_form.py`` (items of
sessions). ``write.py`` writes; ``check.py`` holds a file against the rows that were asked for, ``score.py`` (lists),
``value_score.py`` and ``next_item_check.py`` against the truth. ``row_keys.py``, ``id_lists.py`` and ``ordering.py``
say which line, which ids, in which order.
"""
