import math

import pytest
import torch

from tlm_repro.models.window import Window, band, banded_attention, take_last

HEADS, WIDTH = 2, 3


def slow(query, key, value, persistent, window):
    """Head by head and token by token; persistent (P, E) keys and values of each head."""
    result = torch.zeros_like(query)
    for row in range(len(query)):
        for head in range(HEADS):
            for now in range(query.shape[2]):
                seen = range(max(0, now - window + 1), now + 1)
                keys = torch.cat((persistent[0][head], key[row, head, list(seen)]))
                values = torch.cat((persistent[1][head], value[row, head, list(seen)]))
                shares = (keys @ query[row, head, now] / math.sqrt(WIDTH)).softmax(0)
                result[row, head, now] = shares @ values
    return result


@pytest.mark.parametrize("window", [1, 3, 4, 20])
@pytest.mark.parametrize("time", [1, 4, 11])
@pytest.mark.parametrize("count", [0, 2])
def test_attention_reaches_the_window_and_the_persistent_tokens(window, time, count):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, HEADS, time, WIDTH, dtype=torch.float64)
    persistent = tuple(torch.randn(2, HEADS, count, WIDTH, dtype=torch.float64))
    seen = banded_attention(query, key, value, persistent, window)
    torch.testing.assert_close(seen, slow(query, key, value, persistent, window))


def test_a_band_is_causal_and_ends_at_the_same_token():
    expected = [[now - window < then <= now for then in range(7)] for now, window in ((5, 3), (6, 3))]
    assert band(2, 7, 3, torch.device("cpu")).tolist() == expected


def test_a_window_keeps_the_last_places_and_fills_them_from_the_right():
    tokens = torch.arange(6.0).view(1, 1, 6, 1)
    window = Window.empty(tokens, 4).appended(tokens[:, :, :2], -tokens[:, :, :2], 4)
    assert window.keys.flatten().tolist() == [0, 0, 0, 1]
    assert window.taken.tolist() == [[False, False, True, True]]
    window = window.appended(tokens[:, :, 2:], -tokens[:, :, 2:], 4)
    assert window.values.flatten().tolist() == [-2, -3, -4, -5]
    assert window.taken.all()
    assert window.cleared(torch.tensor([True])).keys.shape == (1, 1, 0, 1)
    assert take_last(tokens[..., 0], 8, 2).flatten().tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
