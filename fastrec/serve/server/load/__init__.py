"""Load on a server from outside, at fixed rates: what to send (``plan.py``), how (``client.py``), how often
(``rounds.py``), and what came out (``report.py``).
"""
