"""What every room stands on: device, memory, threads, files written whole, progress, optional libraries, loops.

Nothing here knows of tables. ``device`` chooses where to compute and ``oom`` names what did not fit there; ``malloc``
keeps freed memory, ``threads`` runs things side by side; ``atomic`` writes whole files and folders or none; ``kernels``
holds the loops that numba compiles; ``optional`` imports what may not be installed.
"""
