"""Terms of a robot task: small functions of a `RobotState`, chosen and weighted by YAML."""
