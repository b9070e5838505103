import pytest
import torch
import torch.nn.functional as F

from tlm_repro.models import loss as losses


@pytest.fixture
def problem():
    """Hidden states (2, 7, 6), a head (11, 6) and targets of which some are left out, in double precision."""
    torch.manual_seed(0)
    hidden = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (2, 7))
    targets[0, 3] = targets[1, 6] = -100
    return hidden, weight, targets


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_the_sliced_loss_and_its_gradients_equal_cross_entropy(monkeypatch, problem, rows):
    monkeypatch.setattr(losses, "slice_rows", lambda *_: rows)
    hidden, weight, targets = problem
    plain = F.cross_entropy((hidden @ weight.t()).flatten(0, 1), targets.flatten())
    expected = torch.autograd.grad(3 * plain, (hidden, weight))
    sliced = losses.head_cross_entropy(hidden, weight, targets)
    gradients = torch.autograd.grad(3 * sliced, (hidden, weight))
    torch.testing.assert_close(sliced, plain)
    torch.testing.assert_close(gradients, expected)


def test_its_gradient_agrees_with_finite_differences(monkeypatch, problem):
    monkeypatch.setattr(losses, "slice_rows", lambda *_: 5)
    hidden, weight, targets = problem
    assert torch.autograd.gradcheck(lambda h, w: losses.head_cross_entropy(h, w, targets), (hidden, weight))


def test_extreme_logits_leave_the_loss_exact():
    # Probabilities of e^−200 don't exist in fp32; the loss of 200 nats does.
    hidden, weight = torch.eye(2, requires_grad=True), torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    assert losses.head_cross_entropy(hidden, weight, torch.tensor([1, 0])).item() == 200.0


def test_half_precision_computes_the_softmax_in_full(problem):
    hidden, weight, targets = (each.float() if each.is_floating_point() else each for each in problem)
    exact = F.cross_entropy((hidden @ weight.t()).flatten(0, 1), targets.flatten())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = losses.head_cross_entropy(hidden, weight, targets)
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=0.01)
    (gradient,) = torch.autograd.grad(rounded, weight)
    (wanted,) = torch.autograd.grad(exact, weight)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, wanted, atol=0.01, rtol=0.05)


def test_labels_move_one_to_the_left():
    assert losses.shift_labels_left(torch.tensor([[5, 6, 7]])).tolist() == [[6, 7, -100]]


def test_slices_fit_a_fixed_number_of_logits():
    assert losses.slice_rows(4096, "cpu") == 512
    assert losses.slice_rows(10**9, "cpu") == 256
    assert losses.slice_rows(32768, "cuda") == 4096
