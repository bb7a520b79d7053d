"""The cache of several rows."""

import torch

from nearlm.serve.past import Past, Piece


def piece(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return Piece(length, [(torch.randn(2, length, 4, generator=generator),) * 2 for _ in range(3)])


def test_rows_end_in_one_column_and_can_be_taken_out_again():
    pieces = [piece(5, 0), piece(2, 1)]
    past = Past(pieces)
    assert past.mask.tolist() == [[1] * 6, [0, 0, 0, 1, 1, 1]]
    for row, expected in enumerate(pieces):
        for (keys, _), (wanted, _) in zip(past.piece(row).layers, expected.layers, strict=True):
            assert torch.equal(keys, wanted)


def test_columns_are_appended_in_place_and_beyond_the_room():
    past = Past([piece(5, 0), piece(2, 1)])
    new = [torch.full((2, 2, 1, 4), float(step)) for step in range(80)]
    for step in new:
        past.cache.layers[0].update(step, step)
        past.grow()
    keys, _ = past.piece(1).layers[0]
    assert keys.shape == (2, 82, 4)
    assert torch.equal(keys[:, 2:, 0], torch.arange(80.0).expand(2, 80))


def test_columns_are_taken_back_and_rows_still_end_together():
    pieces = [piece(5, 0), piece(2, 1), piece(3, 2)]
    past = Past(pieces)
    new = torch.arange(3.0).view(1, 1, 3, 1).expand(3, 2, 3, 4)
    for layer in past.cache.layers:
        layer.update(new, new)
    past.grow(3)
    past.shrink([1, 3, 2])
    assert (past.lengths, past.width) == ([7, 2, 4], 7)
    assert past.mask_with(2).sum(1).tolist() == [9, 4, 6]
    for row, (expected, added) in enumerate(zip(pieces, (2, 0, 1), strict=True)):
        for (keys, values), (wanted, _) in zip(past.piece(row).layers, expected.layers, strict=True):
            assert torch.equal(keys[:, : expected.length], wanted) and torch.equal(keys, values)
            assert keys[0, expected.length :, 0].tolist() == [0.0, 1.0][:added]


def test_columns_of_a_pass_are_taken_back_outside_of_it():
    past = Past([piece(5, 0), piece(2, 1)])
    with torch.inference_mode():
        for layer in past.cache.layers:
            new = torch.zeros(2, *layer.keys.shape[1:2], 500, layer.keys.shape[-1])
            layer.update(new, new)  # whose buffers are made within the pass
    past.grow(500)
    past.shrink([1, 3])
    assert (past.lengths, past.width) == ([504, 499], 504)
