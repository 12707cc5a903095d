"""Episodes on disk: the lab's own format, LeRobot v3.0 and Minari."""
