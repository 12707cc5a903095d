import torch

from rl_lab.ops.raster import COLOURS, DOT_COLOUR, GAP, heat_map, side_by_side, unit_grid, with_dots


def test_the_grid_begins_at_the_upper_left():
    assert unit_grid(2).tolist() == [[-1, 1], [1, 1], [-1, -1], [1, -1]]
    assert unit_grid(3)[4].tolist() == [0, 0]


def test_lowest_and_highest_values_have_the_ends_of_the_colours():
    values = torch.tensor([[0.0, 0.001], [9.999, 10.0]])
    pixels = heat_map(values, num_levels=1)  # one level: no line
    assert pixels[0, 0].tolist() == list(COLOURS[0])
    assert pixels[1, 1].tolist() == list(COLOURS[-1])
    assert heat_map(torch.ones(3, 3)).shape == (3, 3, 3)  # nothing to divide by


def test_lines_run_where_the_level_changes():
    values = torch.arange(6.0).expand(4, 6)  # levels 0 0 0 1 1 1
    plain, lined = heat_map(values, num_levels=1), heat_map(values, num_levels=2)
    assert (plain != lined).any(-1).nonzero().tolist() == [[row, 2] for row in range(4)]


def test_dots_lie_where_the_points_are():
    pixels = with_dots(torch.zeros(5, 5, 3, dtype=torch.uint8), torch.tensor([[1.0, 1.0], [0.0, -1.0]]), radius=0.5)
    assert pixels.any(-1).nonzero().tolist() == [[0, 4], [4, 2]]
    assert pixels[0, 4].tolist() == list(DOT_COLOUR)


def test_panels_have_white_between_them():
    panels = [torch.full((3, 2, 3), shade, dtype=torch.uint8) for shade in (10, 20)]
    joined = side_by_side(panels)
    assert joined.dtype == torch.uint8
    assert joined[0, :, 0].tolist() == [10, 10, *[255] * GAP, 20, 20]
