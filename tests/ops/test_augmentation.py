"""Random shifts: every result is a window of the padded image, and all windows occur."""

import torch

from rl_lab.ops.augmentation import centre_crop, random_crop, random_shift


def test_every_image_is_a_window_of_its_padded_self():
    torch.manual_seed(0)
    images = torch.randint(0, 255, (200, 2, 6, 5), dtype=torch.uint8)
    shifted = random_shift(images, 2)
    assert shifted.dtype == torch.uint8
    offsets = set()
    for image, result in zip(images, shifted, strict=True):
        found = None
        for down in range(-2, 3):
            for right in range(-2, 3):
                rows = [min(max(r + down, 0), 5) for r in range(6)]
                columns = [min(max(c + right, 0), 4) for c in range(5)]
                if torch.equal(image[:, rows][:, :, columns], result):
                    found = (down, right)
        assert found is not None
        offsets.add(found)
    assert len(offsets) == 25


def test_no_pad_changes_nothing():
    images = torch.rand(3, 1, 4, 4)
    assert torch.equal(random_shift(images, 0), images)


def test_crops_are_parts_of_their_images():
    torch.manual_seed(0)
    images = torch.arange(30.0).view(1, 1, 5, 6).expand(300, 1, 5, 6) + 100.0 * torch.arange(300.0).view(-1, 1, 1, 1)
    parts = random_crop(images, 3, 4)
    corners = parts[:, 0, 0, 0] - 100.0 * torch.arange(300.0)
    wanted = {6.0 * row + column for row in range(3) for column in range(3)}
    assert set(corners.tolist()) == wanted
    steps = torch.tensor([[6.0 * row + column for column in range(4)] for row in range(3)])
    assert torch.equal(parts[:, 0], parts[:, 0, :1, :1] + steps)
    assert torch.equal(centre_crop(images, 3, 4), images[..., 1:4, 1:5])
