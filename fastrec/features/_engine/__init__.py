"""Private machinery of the generators: running, nesting and saving of steps, and shared computations."""
