"""MinAtar (Young and Tian, 2019): Atari games on a grid of 10 x 10 cells, thousands of copies at once."""
