"""People beside a robot: what keyboards, gamepads, SpaceMice and a web page have in common, and what they have not."""
