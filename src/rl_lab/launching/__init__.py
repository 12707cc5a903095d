"""Commands of the lab on this and on other machines: their record, their cluster files and command lines."""
