"""Loops of another shape: two players, a policy that earns its data, a net that chases a copy of itself."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward


def points(count: int) -> Tensor:
    """Eight clusters on a circle."""
    angle = torch.randint(8, (count,)) * (torch.pi / 4)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(count, 2)


def adversaries(loop: Loop, *, generator_lr: float, critic_lr: float, batch: int = 64, critics: int = 1) -> None:
    """A generator of points and a critic that tells them from real ones, each with its own optimizer."""

    def run(watch: Watch) -> None:
        generator, critic = perceptron([8, 64, 64, 2]), perceptron([2, 64, 64, 1], nn.LeakyReLU)
        betas = (0.5, 0.999)
        makes = torch.optim.Adam(generator.parameters(), lr=generator_lr, betas=betas)
        tells = torch.optim.Adam(critic.parameters(), lr=critic_lr, betas=betas)
        doctor = watch({"generator": generator, "critic": critic}, [makes, tells])
        bce = functional.binary_cross_entropy_with_logits
        ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)
        for _ in range(loop.steps):
            for _ in range(critics):
                real, made = points(batch), generator(torch.randn(batch, 8)).detach()
                d_loss = bce(critic(real), ones) + bce(critic(made), zeros)
                tells.zero_grad()
                backward(d_loss)
                tells.step()
            g_loss = bce(critic(generator(torch.randn(batch, 8))), ones)
            makes.zero_grad()
            backward(g_loss)
            makes.step()
            loop.losses.append(g_loss.item())
            if doctor is not None:
                doctor.log_loss(d_loss, name="d_loss")
                doctor.log_loss(g_loss, name="g_loss")

    loop.steps = 500
    loop.run = run


def bandit(loop: Loop, *, lr: float, entropy: float, sign: float = 1.0) -> None:
    """A policy over five arms that sees a context, is paid at random, and learns by REINFORCE."""

    def run(watch: Watch) -> None:
        policy = perceptron([6, 32, 5], nn.Tanh)
        best = torch.randn(6, 5)
        optimizer = torch.optim.Adam(policy.parameters(), lr=lr)
        doctor = watch(policy, optimizer)
        for step in range(loop.steps):
            x = torch.randn(32, 6)
            choice: Any = torch.distributions.Categorical(logits=policy(x))
            arm = choice.sample()
            reward = (x @ best).gather(1, arm.unsqueeze(1)).squeeze(1) + torch.randn(32)
            advantage = sign * (reward - reward.mean())
            spread = choice.entropy().mean()
            loss = -(choice.log_prob(arm) * advantage).mean() - entropy * spread
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loop.losses.append(-reward.mean().item())
            if doctor is not None:
                doctor.log_loss(loss)
                doctor.log_loss(spread, name="entropy")
                doctor.log_loss(reward.mean(), name="reward")
                if (step + 1) % 50 == 0:
                    doctor.log_validation(reward=reward.mean())

    loop.steps = 500
    loop.run = run


def values(loop: Loop, *, lr: float = 1e-3, sync: int = 50) -> None:
    """A value net learns from its own frozen copy, which is brought up to date now and then."""

    def run(watch: Watch) -> None:
        net = perceptron([4, 48, 3])
        target = copy.deepcopy(net).requires_grad_(False)
        pays = torch.randn(4, 3)
        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        doctor = watch(net, optimizer)
        for step in range(loop.steps):
            if step % sync == 0:
                target.load_state_dict(net.state_dict())
            x, following = torch.randn(32, 4), torch.randn(32, 4)
            arm = torch.randint(3, (32, 1))
            reward = torch.tanh(x @ pays).gather(1, arm) + 0.3 * torch.randn(32, 1)
            with torch.no_grad():
                goal = reward + 0.9 * target(following).max(1, keepdim=True).values
            loss = functional.smooth_l1_loss(net(x).gather(1, arm), goal)
            optimizer.zero_grad()
            backward(loss)
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            loop.losses.append(loss.item())
            if doctor is not None:
                doctor.log_loss(loss)

    loop.steps = 500
    loop.run = run


def quasi_newton(loop: Loop) -> None:
    """LBFGS on the whole data set, with a closure."""

    def run(watch: Watch) -> None:
        x, y = loop.arena.x[:512], loop.arena.y[:512]
        optimizer = torch.optim.LBFGS(loop.model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
        doctor = watch(loop.model, optimizer, loss_fn=loop.loss_fn)
        step: Any = optimizer.step

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loop.loss_of(loop.model(x), y)
            backward(loss)
            return loss

        for _ in range(loop.steps):
            loss: Any = step(closure)
            loop.losses.append(float(loss))
            if doctor is not None:
                doctor.log_loss(float(loss))

    loop.steps = 60
    loop.run = run
