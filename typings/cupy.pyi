"""CuPy and cupyx, as far as they are used."""
