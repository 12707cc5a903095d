"""Terrain: tiles in levels of difficulty, as MuJoCo geoms and as a height map."""
