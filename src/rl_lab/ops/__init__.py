"""Pure math over tensors: returns, losses, distributions. Imports nothing else from the lab."""
