"""Private machinery of the generators: execution, nesting, saving and shared computations of steps."""
