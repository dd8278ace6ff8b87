"""One module a page: what it shows, as plain values for its template."""
