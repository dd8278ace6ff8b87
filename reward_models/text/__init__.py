"""Texts: read within bounds, parsed, compared."""
