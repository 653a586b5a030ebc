"""How a submission looks, how it is written, checked and scored: ranked lists and a line per row."""
