"""Which geoms a ray sees: those of the terrain's group, never the robot's own."""

TERRAIN_GROUPS = (1, 0, 0, 0, 0, 0)  # one flag per geom group; robots.models.scene puts the terrain into group 0
