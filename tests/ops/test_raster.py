import torch

from rl_lab.ops.raster import (
    COLOURS,
    DOT_COLOUR,
    FRAME,
    GAP,
    MARK_SHADE,
    above_each_other,
    curves,
    framed,
    heat_map,
    side_by_side,
    unit_grid,
    with_dots,
)


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


def test_films_are_joined_frame_by_frame():
    panels = [torch.full((2, 3, 2, 3), shade, dtype=torch.uint8) for shade in (10, 20)]
    joined = above_each_other(panels)
    assert joined.shape == (2, 3 + GAP + 3, 2, 3)
    assert joined[1, :, 0, 0].tolist() == [10] * 3 + [255] * GAP + [20] * 3
    assert side_by_side(panels).shape == (2, 3, 2 + GAP + 2, 3)


def test_a_frame_lies_around_the_picture():
    pixels = framed(torch.zeros(2, 3, 4, 3, dtype=torch.uint8), (1, 2, 3))
    assert pixels.shape == (2, 3 + 2 * FRAME, 4 + 2 * FRAME, 3)
    assert not pixels[:, FRAME:-FRAME, FRAME:-FRAME].any()
    assert pixels[1, 0, 0].tolist() == [1, 2, 3]
    assert int((pixels[0] == torch.tensor([1, 2, 3])).all(-1).sum()) == pixels[0, :, :, 0].numel() - 12


def test_curves_go_from_number_to_number():
    blue, red = (0, 0, 255), (255, 0, 0)
    rising, flat = torch.arange(5.0), torch.full((5,), 2.0)
    pixels = curves(torch.stack([rising, flat]), [blue, red], height=9, width=9, mark=1.0)

    def coloured(colour):
        return (pixels == torch.tensor(colour)).all(-1)

    assert coloured(red).nonzero().tolist() == [[4, column] for column in range(9)]  # the middle, on top
    highest = [int(coloured(blue)[:, column].nonzero()[0]) for column in (0, 1, 7, 8)]
    assert highest == [7, 6, 1, 0]
    assert pixels[0, 2].tolist() == [MARK_SHADE] * 3
    assert pixels[0, 0].tolist() == [255] * 3
    gap = curves(torch.tensor([[0.0, 1.0, torch.nan, torch.nan]]), [blue], height=9, width=9, mark=0.0)
    assert (gap == torch.tensor(blue)).all(-1).any(0).tolist() == [True] * 2 + [False] * 7
    assert curves(torch.full((1, 2), torch.nan), [blue], height=3, width=3, mark=0.0).shape == (3, 3, 3)
