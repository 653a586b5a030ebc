"""An HTTP server round an export: it checks what comes, scores what waits together, and says what it does.

``spec.py`` reads ``serving.json``, ``scorer.py`` loads the graph, ``columns.py`` and ``values.py`` check the rows of a
request, ``bodies.py`` reads JSON and Arrow, ``batcher.py`` puts requests together, ``service.py`` holds what is served,
``app.py`` gives it addresses (``v1.py``: ours, ``v2.py``: the Open Inference Protocol, ``pages.py``: what it says about
itself; ``recommend/``: sessions in, items out), ``process.py`` runs it, and ``make.py`` is the way in. ``load/``
measures a server from outside.
"""
