"""Base of every room: device, memory, threads, atomic files, progress, optional libraries, compiled loops.

Nothing here knows tables.
"""
