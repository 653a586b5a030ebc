"""Export nets of sessions as one ONNX file: raw item ids → the best items.

``export.py`` writes the net (``fastrec.serve.session_scores``) with the items' ids, ``verify.py`` compares it with the
run, ``graph.py`` runs it.
"""
