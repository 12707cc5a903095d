"""One vector environment out of single ones: names, spaces, members, worker processes. Knows no torch."""
