"""`lab launch`: commands of the lab on this machine, detached, and on others."""
