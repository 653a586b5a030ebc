"""Nets of sessions elsewhere: raw item ids in, the best items out, as one ONNX file.

``export.py`` writes a net (``fastrec.serve.session_scores``) with the items' ids round it, ``verify.py`` holds it
against the run, ``graph.py`` runs it.
"""
