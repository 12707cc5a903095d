"""People and robots that they teach: a simulated robot cell, scripted experts, operators who watch and take over."""
