import pytest
import torch

from tlm_repro.models.memory.coefficients import Rates, coefficients, token_rates, triangle


def rates(time, seed=0):
    torch.manual_seed(seed)
    logits = torch.randn(3, 1, 1, time, dtype=torch.float64) * 3
    return Rates(torch.nn.functional.logsigmoid(logits[0]), torch.nn.functional.logsigmoid(logits[1]), logits[2].exp())


def unrolled(rate):
    """What M_t and S_t are made of, by the recurrence itself: shares of M_0, S_0 and of each gradient."""
    eta, keep, theta = (part.flatten() for part in (rate.momentum.exp(), rate.retention.exp(), rate.step))
    time = len(theta)
    memory, momentum = torch.zeros(2, time + 2, dtype=torch.float64)  # shares of (M_0, S_0, −G_1, −G_2, …)
    memory[0] = momentum[1] = 1
    history = []
    for now in range(time):
        momentum = eta[now] * momentum
        momentum[now + 2] += theta[now]
        memory = keep[now] * memory + momentum
        history.append(memory.clone())
    return torch.stack(history), momentum


@pytest.mark.parametrize("lengths", [[1], [6], [4, 4, 1], [2, 5, 5, 3]])
def test_coefficients_are_the_recurrence_unrolled(lengths):
    rate = rates(sum(lengths))
    start = 0
    for length, found in zip(lengths, coefficients(rate, lengths, "token"), strict=True):
        piece = slice(start, start + length)
        part = Rates(*(each[..., piece] for each in (rate.momentum, rate.retention, rate.step)))
        history, momentum = unrolled(part)
        decay, carry, write = (each[0] for each in found.within)
        torch.testing.assert_close(torch.cat((decay, carry, write), -1), history)
        ends = torch.cat((found.decay[0, 0], found.carry[0, 0], found.write[0, :, 0]))
        torch.testing.assert_close(ends, history[-1])
        torch.testing.assert_close(torch.cat((found.fade[0, 0], found.push[0, :, 0])), momentum[1:])
        start += length


def test_reads_at_the_chunks_start_need_its_end_alone():
    rate = rates(7)
    for full, short in zip(coefficients(rate, [4, 3], "token"), coefficients(rate, [4, 3], "chunk"), strict=True):
        assert short.within == ()
        for name in ("decay", "carry", "fade", "write", "push"):
            torch.testing.assert_close(getattr(short, name), getattr(full, name))


def test_a_small_rate_beside_large_ones_isn_t_lost():
    logarithms = torch.tensor([-40.0, -1e-4, -2e-4, -40.0], dtype=torch.float32)
    expected = [logarithms[then + 1 : now + 1].double().sum().exp() for now, then in ((2, 1), (2, 0), (1, 0))]
    seen = triangle(logarithms)
    torch.testing.assert_close(
        [seen[2, 1], seen[2, 0], seen[1, 0]], [each.float() for each in expected], atol=0, rtol=1e-7
    )


def test_rates_are_sigmoids_of_one_map_with_theta_bounded():
    hidden, weight, bias = torch.randn(2, 5, 3), torch.randn(6, 3), torch.randn(6)
    found = token_rates(hidden, weight, bias, 0.25)
    shares = torch.sigmoid(hidden @ weight.t() + bias).transpose(1, 2)
    torch.testing.assert_close(found.momentum.exp(), shares[:, :2])
    torch.testing.assert_close(found.step, 0.25 * shares[:, 2:4])
    torch.testing.assert_close(found.retention.exp(), 1 - shares[:, 4:])
