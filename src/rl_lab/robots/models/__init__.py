"""Robots: what a robot is, the built-in ones, a user's own file, and the scene they are compiled into."""
