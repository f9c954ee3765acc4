"""The losses of draft heads: gradients by their formula, by differences and by what they stand for."""

import pytest
import torch
from torch.nn import functional

from octavo.train import losses
from octavo.train.losses import Aim

N, K = 6, 9


@pytest.fixture
def drawn():
    """(logits of the head, of the model, log of its sum over more tokens than K)."""
    made = torch.Generator().manual_seed(3)
    z = (2 * torch.randn(N, K, generator=made)).requires_grad_()
    model = 2 * torch.randn(N, K, generator=made)
    return z, model, torch.logsumexp(functional.pad(model, (0, 1), value=0.5), 1)


def aim(model, mass, best=None, text=None):
    tokens = model.argmax(1) if best is None else best
    return Aim(model, mass, tokens, tokens if text is None else text)


def test_the_gradient_of_tv_is_its_formula(drawn):
    z, model, mass = drawn
    one = aim(model, mass)
    loss = losses.loss("tv", [z], [one], 1.0)
    [given] = torch.autograd.grad(loss, z)
    q, p = z.detach().softmax(1), one.p()
    share = torch.where(q <= p, q, 0.0).sum(1, keepdim=True)
    wanted = -q * ((q <= p).float() - share) / N
    assert torch.allclose(given, wanted, atol=1e-7)
    assert float(loss.detach()) == pytest.approx(1 - float(torch.minimum(p, q).sum()) / N, abs=1e-6)
    assert (given.norm(dim=1) <= 1 / N + 1e-6).all()


@pytest.mark.parametrize("name", losses._STEPS | {"e2e": None})
def test_gradients_are_those_of_differences(drawn, name):
    z, model, mass = drawn
    z, model, mass = z.detach().double().requires_grad_(), model.double(), mass.double()
    other = model.flip(0)
    steps = [aim(model, mass), aim(other, mass.flip(0))]

    def value(given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "float", lambda self: self)  # in double throughout
            return losses.loss(name, [given, given + 0.1], steps, 0.8)

    [given] = torch.autograd.grad(value(z), z)
    for row, column in ((0, 0), (2, 5), (5, 8)):
        moved = torch.zeros_like(z)
        moved[row, column] = 1e-6
        slope = float((value(z + moved) - value(z - moved)).detach()) / 2e-6
        assert slope == pytest.approx(float(given[row, column]), abs=1e-6)


def test_the_end_to_end_loss_counts_drafts_in_a_row(drawn):
    z, model, mass = drawn
    one, two = aim(model, mass), aim(model.flip(0), mass.flip(0))
    first, second = losses.overlap(z, one), losses.overlap(z, two)
    wanted = 1 - (first.mean() + (first * second).mean()) / 2
    assert float(losses.loss("e2e", [z, z], [one, two], 1.0).detach()) == pytest.approx(
        float(wanted.detach()), abs=1e-6
    )


def test_a_step_weighs_less_than_the_one_before(drawn):
    z, model, mass = drawn
    z, one = z.detach(), aim(model, mass)
    single, three = (losses.loss("soft", [z] * count, [one] * count, 0.8) for count in (1, 3))
    assert float(three) == pytest.approx(float(single) * (1 + 0.8 + 0.64), rel=1e-6)


def test_what_cannot_be_proposed_does_not_count(drawn):
    z, model, mass = drawn
    z = z.detach()
    best = model.argmax(1)
    best[:2] = -1
    outside = aim(model, mass, best=best)
    inside = aim(model[2:], mass[2:])
    for name in ("soft", "hard"):
        assert float(losses.loss(name, [z], [outside], 1.0)) == pytest.approx(
            float(losses.loss(name, [z[2:]], [inside], 1.0)), rel=1e-6
        )
    nothing = aim(model, mass, best=torch.full((N,), -1))
    assert float(losses.loss("hard", [z], [nothing], 1.0)) == 0.0


def test_soft_is_least_where_the_distributions_are_the_same(drawn):
    _, model, mass = drawn
    z = model.clone().requires_grad_()
    [given] = torch.autograd.grad(losses.loss("soft", [z], [aim(model, mass)], 1.0), z)
    assert given.abs().max() < 1e-6
