"""The parts of the fast CarRacing: physics, map, camera and what is drawn on top. Knows no torch."""
