"""``/v1/recommend``: sessions of item ids → the best items, by a saved recommender, a run for next items or its export.

``asked.py`` is a request's sessions, ``body.py`` reads them, ``models.py`` answers them, ``service.py`` holds the model
that is served, ``addresses.py`` gives it addresses, ``pages.py`` says what it takes.
"""
