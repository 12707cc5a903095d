"""The memory: its LSTM against torch's, its loss against loops, what it forgets, and the published size."""

import copy
import math

import pytest
import torch

from rl_lab.components.mdn_rnn import MDNRNN

LATENT, ACTION, HIDDEN, MIXTURES = 3, 2, 5, 4


def make_memory(**options):
    torch.manual_seed(0)
    memory = MDNRNN(HIDDEN, MIXTURES, **options)
    memory.bind(LATENT, ACTION)
    return memory


def fixed_rows(steps=6, batch=3):
    """Return rows of arrival [T, B, ...]; in the second sequence an episode ends and another begins."""
    grid = torch.arange(steps * batch, dtype=torch.float32).view(steps, batch)
    is_first, is_terminal = torch.zeros(steps, batch, dtype=torch.bool), torch.zeros(steps, batch, dtype=torch.bool)
    is_first[0, 0] = is_first[3, 1] = True
    is_terminal[2, 1] = True
    latents = torch.stack([(grid * 0.7).sin(), (grid * 0.3).cos(), grid * 0.05], -1)
    actions = torch.stack([(grid * 1.1).cos(), (grid * 0.2).sin()], -1)
    return latents, actions, (grid * 0.9).sin(), is_terminal, is_first


def lstm_of(memory):
    """Return torch's own LSTM with the same weights."""
    cell = torch.nn.LSTMCell(LATENT + ACTION, HIDDEN)
    with torch.no_grad():
        cell.weight_ih.copy_(memory.input.weight)
        cell.bias_ih.copy_(memory.input.bias)
        cell.weight_hh.copy_(memory.step.gates.weight)
        cell.bias_hh.zero_()
    return cell


def test_states_are_those_of_an_lstm_that_forgets_at_the_start_of_episodes():
    memory = make_memory()
    latents, actions, _, _, is_first = fixed_rows()
    found = memory.observe(latents, actions, is_first)
    cell, hidden, kept = lstm_of(memory), torch.zeros(3, HIDDEN), torch.zeros(3, HIDDEN)
    for step in range(6):
        keep = (~is_first[step]).float()[:, None]
        hidden, kept = cell(torch.cat([latents[step], actions[step]], -1), (hidden * keep, kept * keep))
        torch.testing.assert_close(found.hidden[step], hidden)
        torch.testing.assert_close(found.cell[step], kept)
    assert torch.equal(memory.input.bias[HIDDEN : 2 * HIDDEN], torch.ones(HIDDEN))  # gates begin open


def test_a_step_is_a_sequence_of_one():
    memory = make_memory()
    latents, actions, _, _, is_first = fixed_rows()
    states = memory.observe(latents, actions, torch.zeros_like(is_first))
    stepped = memory.initial(3, torch.device("cpu"))
    for step in range(6):
        stepped = memory.advance(stepped, latents[step], actions[step])
    torch.testing.assert_close(stepped.hidden, states.hidden[-1])
    torch.testing.assert_close(stepped.cell, states.cell[-1])


def naive_terms(memory, rows, end_weight):
    """Return the three losses in float64, one sequence, row and number after the other."""
    latents, actions, rewards, is_terminal, is_first = (leaf.double() for leaf in rows)
    cell, out = lstm_of(memory).double(), copy.deepcopy(memory.out).double()
    nll, reward_errors, end_losses = [], [], []
    for sequence in range(3):
        state = torch.zeros(2, 1, HIDDEN).double()
        for row in range(5):
            if is_first[row, sequence]:
                state = state * 0.0
            state = torch.stack(
                cell(torch.cat([latents[row, sequence], actions[row + 1, sequence]])[None], tuple(state))
            )
            if is_first[row + 1, sequence]:
                continue  # what comes next is another episode
            said = (state[0, 0] @ out.weight.T + out.bias).tolist()
            size = LATENT * MIXTURES
            for number in range(LATENT):
                logits, means, log_stds = (said[k * size + number * MIXTURES :][:MIXTURES] for k in range(3))
                x, total = float(latents[row + 1, sequence, number]), sum(map(math.exp, logits))
                parts = zip(logits, means, log_stds, strict=True)
                density = sum(
                    math.exp(a) / total * math.exp(-0.5 * ((x - m) / math.exp(s)) ** 2 - s) for a, m, s in parts
                )
                nll.append(0.5 * math.log(2 * math.pi) - math.log(density))
            reward_errors.append(0.5 * (said[-2] - float(rewards[row + 1, sequence])) ** 2)
            ends = 1.0 / (1.0 + math.exp(-said[-1]))
            is_end = bool(is_terminal[row + 1, sequence])
            end_losses.append(-end_weight * math.log(ends) if is_end else -math.log(1.0 - ends))
    return [sum(losses) / len(losses) for losses in (nll, reward_errors, end_losses)]


def test_the_loss_is_the_one_of_loops():
    memory = make_memory(reward_scale=2.0, end_scale=3.0, end_weight=10.0)
    loss, terms = memory.losses(*fixed_rows())
    nll, reward, end = naive_terms(memory, fixed_rows(), 10.0)
    found = [float(terms[name]) for name in ("latent_loss", "reward_loss", "end_loss")]
    assert found == pytest.approx([nll, 2.0 * reward, 3.0 * end], rel=1e-5)
    assert float(loss.detach()) == pytest.approx(nll + 2.0 * reward + 3.0 * end, rel=1e-5)


def test_what_another_episode_holds_changes_nothing():
    memory = make_memory()
    latents, actions, _, _, is_first = fixed_rows()
    hidden = memory.observe(latents, actions, is_first).hidden
    latents[:3, 1] += 1.0
    torch.testing.assert_close(memory.observe(latents, actions, is_first).hidden[3:, 1], hidden[3:, 1])


def test_it_has_as_many_parameters_as_published():
    """422,368 for latents of 32, actions of 3, 256 units and 5 mixtures; two outputs are more: reward and end."""
    memory = MDNRNN()
    memory.bind(32, 3)
    assert sum(parameter.numel() for parameter in memory.parameters()) == 422_368 + 2 * (256 + 1)


def test_a_coin_is_expected_to_fall_on_both_sides():
    """Mixtures say that the next number is near -1 or 1 where a single normal would say 0."""
    torch.manual_seed(0)
    memory = MDNRNN(8, 2)
    memory.bind(1, 1)
    optimizer = torch.optim.Adam(memory.parameters(), 1e-2)
    zeros, flags = torch.zeros(3, 128), torch.zeros(3, 128, dtype=torch.bool)
    for _ in range(250):
        coins = torch.where(torch.rand(3, 128, 1) < 0.5, -1.0, 1.0) + 0.1 * torch.randn(3, 128, 1)
        loss, _ = memory.losses(coins, zeros.unsqueeze(-1), zeros, flags, flags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mixture = memory.outlook(memory.observe(coins, coins * 0.0, flags).hidden).latents
    means = mixture.means[-1].detach().sort(-1).values.mean((0, 1))
    torch.testing.assert_close(means, torch.tensor([-1.0, 1.0]), atol=0.1, rtol=0)
    # of one normal: 0.5 log(2 pi e) = 1.42; of the truth: 0.69 + 1.42 - log 10 = -0.19
    assert float(loss.detach()) < 0.3
