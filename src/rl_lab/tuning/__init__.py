"""Many runs from one file: sweeps, and searches for good hyperparameters."""
