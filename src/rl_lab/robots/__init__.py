"""The legged-robot kit: simulation, robot models, terrain, MDP terms and tasks."""
