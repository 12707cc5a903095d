"""Experience storage."""
