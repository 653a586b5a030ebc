"""Private machinery of the generators: how a set's steps are run, nested, saved, and what several of them compute."""
