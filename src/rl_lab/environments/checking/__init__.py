"""What `lab env check` and `lab env bench` ask of an environment."""
